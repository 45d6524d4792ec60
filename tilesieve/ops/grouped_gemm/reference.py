"""grouped_gemm, one expert at a time, sums in fp64. N rows, K depth, M width, E experts, L live rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tilesieve.formats.fp8 import BLOCK


def grouped(token_N: Tensor, offsets_E1: Tensor) -> tuple[Tensor, list[int]]:
    """The rows that hold a token, ordered by expert (int64 [L]), and how many each expert has. Syncs.

    Offsets that descend or leave the buffer are taken as the next ones that do not.
    """
    offsets_E1 = offsets_E1.long().clamp(0, len(token_N)).cummax(0).values
    row_N = torch.arange(len(token_N), device=token_N.device)
    live_N = (token_N >= 0) & (row_N >= offsets_E1[0]) & (row_N < offsets_E1[-1])
    before_N1 = torch.cat([offsets_E1.new_zeros(1), live_N.cumsum(0)])
    return live_N.nonzero()[:, 0], before_N1[offsets_E1].diff().tolist()


def matrix(weights: Sequence[Tensor], expert: int) -> Tensor:
    """The matrix of an expert, out of one stack of them or a list."""
    return weights[0][expert] if weights[0].dim() == 3 else weights[expert]


def product(x_LK: Tensor, w_MK: Tensor, x_scale_LB: Tensor | None = None, w_scale: Tensor | None = None) -> Tensor:
    """x @ w.T, exact and rounded to fp32 once [L,M].

    With scales: per 128 of K the exact product, rounded to fp32, times (scale of x * scale of w), added in
    fp32 block after block.
    """
    if x_scale_LB is None or w_scale is None:
        return (x_LK.double() @ w_MK.double().t()).float()
    sum_LM = torch.zeros(len(x_LK), len(w_MK), device=x_LK.device)
    scale_MB = w_scale.repeat_interleave(BLOCK, 0)[: len(w_MK)]
    for b in range(x_scale_LB.shape[1]):
        block = slice(b * BLOCK, (b + 1) * BLOCK)
        part_LM = (x_LK[:, block].double() @ w_MK[:, block].double().t()).float()
        sum_LM = sum_LM + part_LM * (x_scale_LB[:, b, None] * scale_MB[:, b])
    return sum_LM


def grouped_gemm(x_NK: Tensor, token_N: Tensor, offsets_E1: Tensor, weight: list[Tensor], x_scale_NB: Tensor | None,
                 weight_scale: list[Tensor], dtype: torch.dtype) -> Tensor:  # fmt: skip
    row_L, count_E = grouped(token_N, offsets_E1)
    out_NM = torch.zeros(len(x_NK), weight[0].shape[-2], dtype=dtype, device=x_NK.device)
    for e, row_l in enumerate(row_L.split(count_E)):
        if len(row_l):
            scales = (None, None) if x_scale_NB is None else (x_scale_NB[row_l], matrix(weight_scale, e))
            out_NM[row_l] = product(x_NK[row_l], matrix(weight, e), *scales).to(dtype)
    return out_NM
