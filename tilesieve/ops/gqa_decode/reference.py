"""gqa_decode, one row and one kv head at a time in fp64.

R rows, H query heads, G kv heads, g query heads per kv head, D key width, E value width, B
sequences, n visible positions, p pages of P tokens.
"""

import torch
from torch import Tensor


def visible_slots(table_Bm: Tensor, length_B: Tensor, max_length: int, page_size: int, pages: int, seq: int,
                  position: int) -> Tensor:  # fmt: skip
    """int64 [n]: the slot of each position 0..min(position, length - 1) of a sequence; -1 where the
    page table names no page of the pool. Empty for a sequence that does not exist."""
    if not 0 <= seq < len(length_B):
        return table_Bm.new_empty(0, dtype=torch.int64)
    n = max(0, min(position + 1, int(length_B[seq]), max_length, table_Bm.shape[1] * page_size))
    page = table_Bm[seq, : -(-n // page_size)].long()[:, None]
    slot = page * page_size + torch.arange(page_size, device=page.device)
    return slot.masked_fill((page < 0) | (page >= pages), -1).flatten()[:n]


def attend(q_gD: Tensor, key_nD: Tensor, value_nE: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention of a few queries over n >= 0 keys: out [g,E] and lse [g] in fp64."""
    if len(key_nD) == 0:
        out_gE = q_gD.new_zeros(len(q_gD), value_nE.shape[1], dtype=torch.float64)
        return out_gE, q_gD.new_full((len(q_gD),), -torch.inf, dtype=torch.float64)
    score_gn = q_gD.double() @ key_nD.double().T * scale
    top_g = score_gn.amax(-1)
    # Scores of -inf throughout weigh nothing; -inf - -inf would be NaN.
    top_g = top_g.masked_fill(top_g == -torch.inf, 0.0)
    weight_gn = (score_gn - top_g[:, None]).exp()
    total_g = weight_gn.sum(-1)
    out_gE = weight_gn @ value_nE.double() / total_g.masked_fill(total_g == 0, 1.0)[:, None]
    return out_gE, top_g + total_g.log()


def with_sink(out_HE: Tensor, lse_H: Tensor, sink_H: Tensor | None) -> Tensor:
    """out with exp(sink) added to the denominator of its softmax; leading dimensions are free."""
    if sink_H is None:
        return out_HE
    # Not torch.sigmoid: its bits depend on an element's place (vector body or tail); those of exp do not.
    share_H = 1.0 / (1.0 + torch.exp(sink_H.to(lse_H.dtype) - lse_H))
    # Nothing seen and a sink of -inf: 0 of 0. The row stays zero.
    return out_HE * share_H.masked_fill(lse_H == -torch.inf, 0.0)[..., None]


def gqa_decode(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, table_Bm: Tensor, length_B: Tensor,
               max_length: int, seq_R: Tensor, position_R: Tensor, scale: float,
               sink_H: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    rows, heads, _ = q_RHD.shape
    g = heads // kv_heads
    out_RHE = torch.empty(rows, heads, value_pPGE.shape[3], device=q_RHD.device)
    lse_RH = torch.empty(rows, heads, device=q_RHD.device)
    for r in range(rows):
        slot_n = visible_slots(table_Bm, length_B, max_length, page_size, pages, int(seq_R[r]), int(position_R[r]))
        slot_n = slot_n[slot_n >= 0]
        page_n, offset_n = slot_n // page_size, slot_n % page_size
        for h in range(kv_heads):
            mine = slice(h * g, h * g + g)
            out_gE, lse_g = attend(
                q_RHD[r, mine], key_pPGD[page_n, offset_n, h], value_pPGE[page_n, offset_n, h], scale
            )
            out_RHE[r, mine] = with_sink(out_gE, lse_g, None if sink_H is None else sink_H[mine])
            lse_RH[r, mine] = lse_g
    return out_RHE, lse_RH
