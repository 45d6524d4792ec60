"""sparse_gqa, one row, one list and one kv head at a time in fp64.

R rows, A lists of a row (one, one per kv head or one per query head), K slots listed, H query
heads, G kv heads, g query heads per kv head, D key width, E value width, n valid slots.
"""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import attend, with_sink


def sparse_gqa(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, slot_RAK: Tensor, count_RA: Tensor,
               scale: float, sink_H: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    rows, heads, _ = q_RHD.shape
    lists = slot_RAK.shape[1]
    out_RHE = torch.empty(rows, heads, value_pPGE.shape[3], device=q_RHD.device)
    lse_RH = torch.empty(rows, heads, device=q_RHD.device)
    units = max(lists, kv_heads)  # of query heads that share a list and a kv head
    g = heads // units
    for r in range(rows):
        for u in range(units):
            mine = slice(u * g, u * g + g)
            a, h = u * lists // units, u * kv_heads // units
            slot_n = slot_RAK[r, a, : max(0, int(count_RA[r, a]))].long()
            slot_n = slot_n[(slot_n >= 0) & (slot_n < pages * page_size)]
            page_n, offset_n = slot_n // page_size, slot_n % page_size
            key_nD, value_nE = key_pPGD[page_n, offset_n, h], value_pPGE[page_n, offset_n, h]
            out_gE, lse_g = attend(q_RHD[r, mine], key_nD, value_nE, scale)
            out_RHE[r, mine] = with_sink(out_gE, lse_g, None if sink_H is None else sink_H[mine])
            lse_RH[r, mine] = lse_g
    return out_RHE, lse_RH
