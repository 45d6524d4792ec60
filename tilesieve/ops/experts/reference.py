"""experts, one expert at a time, products in fp64. T tokens, D width, I expert width, E experts, K picks,
N rows, B blocks of 128 of D; l the rows of one expert."""

import torch
from torch import Tensor

from tilesieve.ops.grouped_gemm.reference import grouped, matrix, product
from tilesieve.ops.swiglu_mlp.reference import between, swiglu


def live(token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, tokens: int,
         weight_TK: Tensor | None) -> tuple[Tensor, list[int]]:  # fmt: skip
    """The rows that have a token, and a weight where there are weights, ordered by expert (int64 [L]), and how
    many each expert has. Syncs."""
    known_N = token_N < tokens
    if weight_TK is not None:
        known_N = known_N & (choice_N >= 0) & (choice_N < weight_TK.shape[1])
    return grouped(torch.where(known_N, token_N, -1), offsets_E1)


def experts(x_TD: Tensor, token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, w13: list[Tensor],
            w2: list[Tensor], weight_TK: Tensor | None, weight_at: str, limit: float | None,
            x_scale_TB: Tensor | None, w13_scale: list[Tensor], w2_scale: list[Tensor], quantiser: str | None,
            dtype: torch.dtype) -> Tensor:  # fmt: skip
    row_L, count_E = live(token_N, choice_N, offsets_E1, len(x_TD), weight_TK)
    out_ND = torch.zeros(len(token_N), w2[0].shape[-2], dtype=dtype, device=x_TD.device)
    for e, row_l in enumerate(row_L.split(count_E)):
        if len(row_l) == 0:
            continue
        token_l = token_N[row_l].long()
        scale13, scale2 = (None, None) if quantiser is None else (matrix(w13_scale, e), matrix(w2_scale, e))
        x_scale_lB = None if x_scale_TB is None else x_scale_TB[token_l]
        gate_lI, up_lI = product(x_TD[token_l], matrix(w13, e), x_scale_lB, scale13).chunk(2, 1)
        h_lI = swiglu(gate_lI, up_lI, limit)
        weight_l1 = None if weight_TK is None else weight_TK[token_l, choice_N[row_l].long()][:, None]
        if weight_l1 is not None and weight_at == "before_down":
            h_lI = h_lI * weight_l1
        code_lI, h_scale = between(h_lI, x_TD, quantiser)
        y_lD = product(code_lI, matrix(w2, e), h_scale, scale2)
        if weight_l1 is not None and weight_at == "down":
            y_lD = y_lD * weight_l1
        out_ND[row_l] = y_lD.to(dtype)
    return out_ND
