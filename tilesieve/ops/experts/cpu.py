"""experts in tiles of rows: a pass gathers rows, multiplies, activates, multiplies and writes."""

import torch
from torch import Tensor

from tilesieve.ops.experts.reference import live
from tilesieve.ops.products import Matrices, common, linear, passes, put, take
from tilesieve.ops.swiglu_mlp.reference import between, swiglu


def experts(x_TD: Tensor, token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, w13: list[Tensor],
            w2: list[Tensor], weight_TK: Tensor | None, weight_at: str, limit: float | None,
            x_scale_TB: Tensor | None, w13_scale: list[Tensor], w2_scale: list[Tensor], quantiser: str | None,
            dtype: torch.dtype, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_ND,) = out
    row_L, count_E = live(token_N, choice_N, offsets_E1, len(x_TD), weight_TK)
    if len(row_L) < len(out_ND):
        out_ND.zero_()
    token_L = token_N[row_L].long()
    weight_L1 = None if weight_TK is None else weight_TK[token_L, choice_N[row_L].long()][:, None]
    each_L = torch.arange(len(row_L), device=x_TD.device)
    first, second = Matrices(w13, w13_scale), Matrices(w2, w2_scale)
    for source_P, tiles in passes(count_E, common(first, second, x_TD.device), x_TD.device):
        scale_PB = None if x_scale_TB is None else take(x_scale_TB, token_L, source_P)
        weight_P1 = None if weight_L1 is None else take(weight_L1, each_L, source_P)
        gate_PI, up_PI = linear(take(x_TD, token_L, source_P), scale_PB, tiles, first).chunk(2, 1)
        h_PI = swiglu(gate_PI, up_PI, limit)
        if weight_P1 is not None and weight_at == "before_down":
            h_PI.mul_(weight_P1)
        code_PI, scale_PB = between(h_PI, x_TD, quantiser)
        y_PD = linear(code_PI.float(), scale_PB, tiles, second)
        if weight_P1 is not None and weight_at == "down":
            y_PD.mul_(weight_P1)
        put(y_PD, row_L, source_P, out_ND)
