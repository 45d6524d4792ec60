"""sparse_gqa_prefill: sparse_gqa's reference over the slots that each row's mask leaves.

R rows, A lists of a row (one, one per kv head or one per query head), K positions listed, H query
heads, D key width, E value width, B sequences, p pages of P tokens, n visible positions.
"""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import visible_slots
from tilesieve.ops.sparse_gqa.reference import sparse_gqa


def masked_slots(table_Bm: Tensor, length_B: Tensor, max_length: int, page_size: int, pages: int, seq_R: Tensor,
                 position_R: Tensor, index_RAK: Tensor, count_RA: Tensor) -> Tensor:  # fmt: skip
    """int64 [R,A,K]: each row's set of positions, ascending, as slots; -1 behind them."""
    slot_RAK = torch.full(index_RAK.shape, -1, dtype=torch.int64, device=index_RAK.device)
    rows, lists, _ = index_RAK.shape
    for r in range(rows):
        slot_n = visible_slots(
            table_Bm, length_B, max_length, page_size, pages, int(seq_R[r]), int(position_R[r])
        ).tolist()
        for a in range(lists):
            listed = set(index_RAK[r, a, : max(0, int(count_RA[r, a]))].tolist())
            chosen = [slot_n[p] for p in sorted(listed) if 0 <= p < len(slot_n)]
            slot_RAK[r, a, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
    return slot_RAK


def sparse_gqa_prefill(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, table_Bm: Tensor, length_B: Tensor,
                       max_length: int, seq_R: Tensor, position_R: Tensor, index_RAK: Tensor, count_RA: Tensor,
                       scale: float, sink_H: Tensor | None) -> tuple[Tensor, Tensor]:  # fmt: skip
    pages, page_size = key_pPGD.shape[:2]
    slot_RAK = masked_slots(
        table_Bm, length_B, max_length, page_size, pages, seq_R, position_R, index_RAK, count_RA
    )  # fmt: skip
    every_RA = torch.full_like(count_RA, index_RAK.shape[2])
    return sparse_gqa(q_RHD, key_pPGD, value_pPGE, slot_RAK, every_RA, scale, sink_H)
