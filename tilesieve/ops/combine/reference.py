"""combine, one token and one pick at a time. T tokens, K picks, N rows, D width, E experts.

The contract fixes the bits: fp32 products, fp32 sums in a stated order, one rounding. So this
reference is in fp32, not fp64, and every implementation must equal it exactly.
"""

import torch
from torch import Tensor


def combine(y_ND: Tensor, token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, weight_TK: Tensor,
            shared_TD: Tensor | None, order: str, dtype: torch.dtype) -> Tensor:  # fmt: skip
    tokens, picks = weight_TK.shape
    out_TD = torch.empty(tokens, y_ND.shape[1], dtype=dtype, device=y_ND.device)
    rows = min(int(offsets_E1[-1]), len(token_N))
    placed: dict[tuple[int, int], int] = {}
    for row, (token, choice) in enumerate(zip(token_N[:rows].tolist(), choice_N[:rows].tolist(), strict=True)):
        if 0 <= token < tokens and 0 <= choice < picks:
            placed[token, choice] = row
    for t in range(tokens):
        mine = [(c, placed[t, c]) for c in range(picks) if (t, c) in placed]
        if order == "expert":
            mine.sort(key=lambda pair: pair[1])  # rows are ordered by expert
        total_D = torch.zeros(y_ND.shape[1], dtype=torch.float32, device=y_ND.device)
        for c, row in mine:
            product_D = weight_TK[t, c] * y_ND[row].float()
            total_D = total_D + product_D
        if shared_TD is not None:
            total_D = total_D + shared_TD[t].float()
        out_TD[t] = total_D.to(dtype)
    return out_TD
