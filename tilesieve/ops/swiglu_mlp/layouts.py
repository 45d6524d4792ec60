"""Gate and up in one matrix: ours has the gate rows first, others' alternate."""

from torch import Tensor


def from_interleaved(w13: Tensor) -> Tensor:
    """Rows gate 0, up 0, gate 1, up 1, .. [..,2I,D] -> all gate rows, then all up rows. A copy.

    Not for e4m3 codes: a scale is for 128 rows together, so rows cannot move without being quantised again.
    Raises ValueError for codes and for an odd number of rows.
    """
    _expect_even(w13)
    return w13.unflatten(-2, (-1, 2)).transpose(-3, -2).flatten(-3, -2).contiguous()


def to_interleaved(w13: Tensor) -> Tensor:
    """The way back of `from_interleaved`."""
    _expect_even(w13)
    return w13.unflatten(-2, (2, -1)).transpose(-3, -2).flatten(-3, -2).contiguous()


def _expect_even(w13: Tensor) -> None:
    if w13.dim() < 2 or w13.shape[-2] % 2 or w13.dtype.itemsize == 1:
        raise ValueError(f"w13 is {w13.dtype} {tuple(w13.shape)}; allowed: [.., 2I, D] of 2 bytes or more an element")
