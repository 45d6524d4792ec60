"""The backward of permute: a token's gradient is the sum of its rows', in ascending choice."""

from typing import Any

from torch import Tensor

from tilesieve.ops.unpermute.reference import add_picks


def setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor) -> None:
    x, _, offsets, row = inputs
    ctx.save_for_backward(offsets, row)
    ctx.dtype = x.dtype


def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
    offsets, row = ctx.saved_tensors
    return add_picks(grad_ND, offsets, row, None).to(ctx.dtype), None, None, None
