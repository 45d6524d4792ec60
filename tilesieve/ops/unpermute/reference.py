"""unpermute, one token and one pick at a time, and all at once. T tokens, K picks, N rows, D width.

The contract fixes the bits (products and sums in fp32, ascending choice, one rounding), so the reference
is in fp32 and every implementation must equal it exactly. fp64 rows are summed in fp64.
"""

import torch
from torch import Tensor


def wide(rows_ND: Tensor) -> torch.dtype:
    """The dtype of products and sums."""
    return torch.float64 if rows_ND.dtype == torch.float64 else torch.float32


def unpermute(rows_ND: Tensor, offsets_E1: Tensor, row_TK: Tensor, weight_TK: Tensor | None,
              dtype: torch.dtype) -> Tensor:  # fmt: skip
    tokens, width = len(row_TK), rows_ND.shape[1]
    end = min(int(offsets_E1[-1]), len(rows_ND))
    out_TD = torch.empty(tokens, width, dtype=dtype, device=rows_ND.device)
    for t, row_K in enumerate(row_TK.tolist()):
        total_D = torch.zeros(width, dtype=wide(rows_ND), device=rows_ND.device)
        for c, row in enumerate(row_K):
            if 0 <= row < end:
                row_D = rows_ND[row].to(total_D.dtype)
                total_D = total_D + (row_D if weight_TK is None else weight_TK[t, c].to(total_D.dtype) * row_D)
        out_TD[t] = total_D.to(dtype)
    return out_TD


def known(rows: int, offsets_E1: Tensor, row_TK: Tensor) -> Tensor:
    """Which picks have a row among the `rows` given: bool [T,K]."""
    return (row_TK >= 0) & (row_TK < offsets_E1[-1].clamp(max=rows))


def add_picks(rows_ND: Tensor, offsets_E1: Tensor, row_TK: Tensor, weight_TK: Tensor | None) -> Tensor:
    """The sums of all tokens before their rounding, [T,D]; differentiable, reads nothing back."""
    dtype = wide(rows_ND)
    total_TD = torch.zeros(len(row_TK), rows_ND.shape[1], dtype=dtype, device=rows_ND.device)
    if rows_ND.shape[0] == 0:
        return total_TD
    known_TK = known(rows_ND.shape[0], offsets_E1, row_TK)
    place_TK = torch.where(known_TK, row_TK, 0)
    for c in range(row_TK.shape[1]):
        part_TD = rows_ND.index_select(0, place_TK[:, c]).to(dtype)
        if weight_TK is not None:
            part_TD = weight_TK[:, c, None].to(dtype) * part_TD
        # A missing pick may be NaN: it is replaced, never multiplied by zero.
        total_TD = total_TD + torch.where(known_TK[:, c, None], part_TD, 0.0)
    return total_TD
