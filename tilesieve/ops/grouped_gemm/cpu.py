"""grouped_gemm in tiles of rows: fp32 sums, no loop over rows."""

import torch
from torch import Tensor

from tilesieve.ops.grouped_gemm.reference import grouped
from tilesieve.ops.products import Matrices, linear, passes, put, take


def grouped_gemm(x_NK: Tensor, token_N: Tensor, offsets_E1: Tensor, weight: list[Tensor], x_scale_NB: Tensor | None,
                 weight_scale: list[Tensor], dtype: torch.dtype, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_NM,) = out
    row_L, count_E = grouped(token_N, offsets_E1)
    if len(row_L) < len(out_NM):
        out_NM.zero_()
    of = Matrices(weight, weight_scale)
    for source_P, tiles in passes(count_E, of.sizes(x_NK.device), x_NK.device):
        scale_PB = None if x_scale_NB is None else take(x_scale_NB, row_L, source_P)
        put(linear(take(x_NK, row_L, source_P), scale_PB, tiles, of), row_L, source_P, out_NM)
