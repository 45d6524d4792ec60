"""unpermute, many tokens at once, one pick after the other: the reference's bits."""

import torch
from torch import Tensor

from tilesieve.ops.unpermute.reference import known, wide

# Tokens per pass: the sums and the picks of one pass stay in the L2 cache at usual widths.
_TOKENS = 128


def unpermute(rows_ND: Tensor, offsets_E1: Tensor, row_TK: Tensor, weight_TK: Tensor | None, dtype: torch.dtype, *,
              out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_TD,) = out
    (n, width), (tokens, picks), sums = rows_ND.shape, row_TK.shape, wide(rows_ND)
    known_TK = known(n, offsets_E1, row_TK)
    place_KT = torch.where(known_TK, row_TK, 0).T.contiguous()
    missing_KT1 = ~known_TK.T.contiguous()[..., None]
    holes = bool(missing_KT1.any())
    for start in range(0, tokens, _TOKENS):
        part = slice(start, min(start + _TOKENS, tokens))
        total_tD = torch.zeros(part.stop - start, width, dtype=sums, device=rows_ND.device)
        pick_tD, wide_tD = total_tD.new_empty(total_tD.shape, dtype=rows_ND.dtype), torch.empty_like(total_tD)
        for c in range(picks if n else 0):
            torch.index_select(rows_ND, 0, place_KT[c, part], out=pick_tD)
            # A product and a sum, each rounded: a fused one would round once.
            if weight_TK is not None:
                torch.mul(pick_tD, weight_TK[part, c, None], out=wide_tD)
            else:
                wide_tD.copy_(pick_tD)
            if holes:  # may be NaN: replaced, never multiplied by zero
                wide_tD.masked_fill_(missing_KT1[c, part], 0.0)
            total_tD.add_(wide_tD)
        out_TD[part] = total_tD.to(dtype)
