"""Which d_score numbers of a key are kept for scoring: the four ways to make a Projection.

D is the width of a key, C = d_score the width of a reduced one, G kv heads. With C = D each of
them scores exactly (pca up to a constant per row, and to rounding).
"""

import torch
from torch import Tensor

from tilesieve.types import Projection

WHICH = ("slowest", "fastest")
Device = torch.device | str


def _columns(columns: int, most: int, what: str) -> None:
    if not isinstance(columns, int) or isinstance(columns, bool) or not 1 <= columns <= most:
        raise ValueError(f"d_score is {columns!r}; allowed: 1 to {what} = {most}")


def _keep(kind: str, dims: Tensor, width: int) -> Projection:
    return Projection(kind, dims=dims, basis=None, mean=None, width=width)


def identity(width: int, device: Device = "cpu") -> Projection:
    """All D dimensions: the exact score."""
    _columns(width, width, "D")
    return _keep("identity", torch.arange(width, device=device), width)


def prefix(width: int, columns: int, device: Device = "cpu") -> Projection:
    """The first C of D dimensions."""
    _columns(columns, width, "D")
    return _keep("prefix", torch.arange(columns, device=device), width)


def rotary_pairs(width: int, columns: int, which: str = "slowest", rotary: int | None = None,
                 device: Device = "cpu") -> Projection:  # fmt: skip
    """C / 2 pairs (i, i + rotary / 2) of a half-split rope, both halves of each.

    rotary is how many leading dimensions the rope turns (D by default). Pair i turns by
    theta^(-2i / rotary) per position: a low i is fast and tells near positions apart, a high i is
    slow and keeps what a key says at any distance. dims lists the first halves in ascending
    order, then their partners. C is even and at most rotary.
    """
    rotary = width if rotary is None else rotary
    if rotary < 2 or rotary % 2 or rotary > width:
        raise ValueError(f"rotary is {rotary}; allowed: an even number from 2 to D = {width}")
    if which not in WHICH:
        raise ValueError(f"which is {which!r}; allowed: {', '.join(map(repr, WHICH))}")
    _columns(columns, rotary, "rotary")
    if columns % 2:
        raise ValueError(f"d_score is {columns}; allowed: an even number, pairs are kept whole")
    half, pairs = rotary // 2, columns // 2
    first = torch.arange(pairs, device=device) + (half - pairs if which == "slowest" else 0)
    return _keep(f"rotary_{which}", torch.cat([first, first + half]), width)


def pca(keys: Tensor, columns: int, centred: bool = True) -> Projection:
    """The C principal directions of each kv head's keys [N,G,D] (fp32, bf16 or fp16; N >= 1).

    centred takes the keys' mean off first (off keys only, later ones too): directions then follow
    how keys differ, which is all that a ranking can see. Computed in fp64; columns by descending
    variance, each signed so that its entry of largest magnitude (the first of equals) is
    positive. Directions of equal variance are whatever the eigensolver gives.

    Raises ValueError for a bad C, no keys, or keys that are not finite.
    """
    if keys.dim() != 3 or keys.shape[0] < 1 or not keys.dtype.is_floating_point:
        raise ValueError(f"keys is {keys.dtype} {tuple(keys.shape)}; allowed: floating point [N, G, D], N >= 1")
    _columns(columns, keys.shape[2], "D")
    if not bool(keys.isfinite().all()):
        raise ValueError("keys holds a NaN or an infinity; allowed: finite numbers")
    x_GND = keys.transpose(0, 1).double()
    mean_GD = x_GND.mean(1) if centred else torch.zeros_like(x_GND[:, 0])
    x_GND = x_GND - mean_GD[:, None]
    _, vectors = torch.linalg.eigh(x_GND.transpose(1, 2) @ x_GND)  # ascending
    basis = vectors.flip(-1)[..., :columns]
    # argmax gives no promise among equals; the first of the maxima does.
    size = basis.abs()
    largest = (size == size.amax(1, keepdim=True)).to(torch.int8)
    first = (largest.cumsum(1) == 1) & largest.bool()
    basis = basis * (basis * first).sum(1, keepdim=True).sign()
    mean = mean_GD.float().contiguous() if centred else None
    return Projection("pca", dims=None, basis=basis.float().contiguous(), mean=mean, width=keys.shape[2])
