"""permute, all rows at once: a copy per row, then zeros where there is none."""

import torch
from torch import Tensor


def permute(x_TD: Tensor, token_N: Tensor, offsets_E1: Tensor, row_TK: Tensor | None, *,
            out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_ND,) = out
    tokens, rows = len(x_TD), len(token_N)
    if tokens == 0:
        out_ND.zero_()
        return
    row_N = torch.arange(rows, device=x_TD.device)
    missing_N = (row_N >= offsets_E1[-1]) | (token_N < 0) | (token_N >= tokens)
    torch.index_select(x_TD, 0, token_N.long().masked_fill_(missing_N, 0), out=out_ND)
    if bool(missing_N.any()):
        out_ND[missing_N] = 0
