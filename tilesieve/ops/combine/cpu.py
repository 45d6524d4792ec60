"""combine, all tokens at once, one pick after the other: the reference's bits, vectorised."""

import torch
from torch import Tensor

# Tokens per pass: the fp32 sums of one pass stay in the L2 cache at usual widths.
_TOKENS = 1024


def combine(y_ND: Tensor, token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, weight_TK: Tensor,
            shared_TD: Tensor | None, order: str, dtype: torch.dtype, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_TD,) = out
    tokens, picks = weight_TK.shape
    n = len(token_N)
    row_N = torch.arange(n, device=y_ND.device)
    valid_N = (row_N < offsets_E1[-1]) & (token_N >= 0) & (token_N < tokens) & (choice_N >= 0) & (choice_N < picks)
    place_N = torch.where(valid_N, token_N.long() * picks + choice_N, tokens * picks)
    # amax, not a plain scatter: where a pick is listed twice the later row counts, without a race.
    row_TK = torch.full((tokens * picks + 1,), -1, device=y_ND.device)
    row_TK.scatter_reduce_(0, place_N, row_N, "amax")
    row_TK = row_TK[:-1].view(tokens, picks)
    pick_TK = torch.arange(picks, device=y_ND.device).expand(tokens, picks)
    if order == "expert" and picks:
        late = torch.where(row_TK < 0, n, row_TK)  # missing picks last
        _, pick_TK = late.sort(dim=1, stable=True)
        row_TK = row_TK.gather(1, pick_TK)
    weight_TK = weight_TK.gather(1, pick_TK)
    for start in range(0, tokens, _TOKENS):
        part = slice(start, min(start + _TOKENS, tokens))
        total_TD = torch.zeros(part.stop - start, y_ND.shape[1], device=y_ND.device)
        for c in range(picks if n else 0):
            here_T = row_TK[part, c] >= 0
            product_TD = weight_TK[part, c, None] * y_ND[row_TK[part, c].clamp(min=0)].float()
            # The product of a missing pick may be NaN: it is replaced, never multiplied by zero.
            total_TD += product_TD.masked_fill_(~here_T[:, None], 0.0)
        if shared_TD is not None:
            total_TD += shared_TD[part].float()
        out_TD[part] = total_TD.to(dtype)
