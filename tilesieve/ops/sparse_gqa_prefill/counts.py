"""What an attention under a mask of positions reads, counted on the tensors. Only observers ask."""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import visible_slots


def counts(table_Bm: Tensor, length_B: Tensor, max_length: int, page_size: int, pages: int, seq_R: Tensor,
           position_R: Tensor, index_RAK: Tensor, count_RA: Tensor, heads: int,
           kv_heads: int) -> dict[str, int]:  # fmt: skip
    """visited: (query head, position) pairs that the masks leave; distinct: (kv head, slot) pairs among
    them; entries: of the page table that name their pages."""
    _, lists, picks = index_RAK.shape
    touched_GS = torch.zeros(kv_heads, pages * page_size, dtype=torch.bool, device=index_RAK.device)
    counted_RAK = torch.arange(picks, device=index_RAK.device) < count_RA[..., None]
    visited = entries = 0
    for seq in seq_R.unique().tolist():
        row_R = (seq_R == seq).nonzero().flatten()
        slot_n = visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, int(position_R[row_R].max()))
        n, index_RAk = len(slot_n), index_RAK[row_R]
        seen_R = (position_R[row_R].long() + 1).clamp(0, n)
        valid_RAk = counted_RAK[row_R] & (index_RAk >= 0) & (index_RAk < seen_R[:, None, None])
        chosen_RAn = torch.zeros(len(row_R), lists, n + 1, dtype=torch.bool, device=index_RAK.device)
        chosen_RAn.scatter_(2, torch.where(valid_RAk, index_RAk, n).long(), True)
        chosen_An = chosen_RAn[..., :n].any(0)
        named = torch.arange(n, device=slot_n.device)[chosen_An.any(0)] // page_size
        entries += len(named.unique())
        chosen_RAn = chosen_RAn[..., :n] & (slot_n >= 0)
        visited += int(chosen_RAn.sum()) * heads // lists
        for a in range(lists):
            heads_read = slice(None) if lists == 1 else a * kv_heads // lists
            touched_GS[heads_read, slot_n[chosen_An[a] & (slot_n >= 0)]] = True
    return {"visited": visited, "distinct": int(touched_GS.sum()), "entries": entries}
