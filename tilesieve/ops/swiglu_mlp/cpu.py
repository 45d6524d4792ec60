"""swiglu_mlp in tiles of rows: one expert that all tokens go to."""

import torch
from torch import Tensor

from tilesieve.ops.products import Matrices, common, linear, passes, put, take
from tilesieve.ops.swiglu_mlp.reference import between, swiglu


def swiglu_mlp(x_TD: Tensor, w13: Tensor, w2_DI: Tensor, limit: float | None, x_scale_TB: Tensor | None,
               w13_scale: Tensor | None, w2_scale: Tensor | None, quantiser: str | None, dtype: torch.dtype, *,
               out: tuple[Tensor, ...]) -> None:  # fmt: skip
    first = Matrices([w13], [] if w13_scale is None else [w13_scale])
    second = Matrices([w2_DI], [] if w2_scale is None else [w2_scale])
    each_T = torch.arange(len(x_TD), device=x_TD.device)
    for source_P, tiles in passes([len(x_TD)], common(first, second, x_TD.device), x_TD.device):
        scale_PB = None if x_scale_TB is None else take(x_scale_TB, each_T, source_P)
        gate_PI, up_PI = linear(take(x_TD, each_T, source_P), scale_PB, tiles, first).chunk(2, 1)
        h_PI, scale_PB = between(swiglu(gate_PI, up_PI, limit), x_TD, quantiser)
        put(linear(h_PI.float(), scale_PB, tiles, second), each_T, source_P, out[0])
