"""What an attention over slots reads, counted on the tensors. Only observers ask."""

import torch
from torch import Tensor


def counts(slot_RAK: Tensor, count_RA: Tensor, heads: int, kv_heads: int, slots: int) -> dict[str, int]:
    """visited: (query head, listed slot) pairs that are valid; distinct: (kv head, slot) pairs among them."""
    _, lists, picks = slot_RAK.shape
    counted_RAK = torch.arange(picks, device=slot_RAK.device) < count_RA[..., None]
    valid_RAK = counted_RAK & (slot_RAK >= 0) & (slot_RAK < slots)
    visited = int(valid_RAK.sum()) * heads // lists
    touched_GS = torch.zeros(kv_heads, slots, dtype=torch.bool, device=slot_RAK.device)
    for a in range(lists):
        heads_read = slice(None) if lists == 1 else a * kv_heads // lists
        touched_GS[heads_read, slot_RAK[:, a][valid_RAK[:, a]].long()] = True
    return {"visited": visited, "distinct": int(touched_GS.sum())}
