"""permute, one row at a time. T tokens, N rows, D width, E experts, K picks."""

import torch
from torch import Tensor


def permute(x_TD: Tensor, token_N: Tensor, offsets_E1: Tensor, row_TK: Tensor | None) -> Tensor:
    tokens, width = x_TD.shape
    out_ND = torch.zeros(len(token_N), width, dtype=x_TD.dtype, device=x_TD.device)
    for row, token in enumerate(token_N[: int(offsets_E1[-1])].tolist()):
        if 0 <= token < tokens:
            out_ND[row] = x_TD[token]
    return out_ND
