"""What a dense attention reads, counted on the tensors. Only observers ask."""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import visible_slots


def counts(table_Bm: Tensor, length_B: Tensor, max_length: int, seq_R: Tensor, position_R: Tensor, page_size: int,
           pages: int) -> dict[str, int]:  # fmt: skip
    """visible: (row, position) pairs; slots: distinct places in the pool; entries: of the page table."""
    deepest: dict[int, int] = {}
    seen: dict[tuple[int, int], int] = {}
    visible = 0
    for seq, position in zip(seq_R.tolist(), position_R.tolist(), strict=True):
        if (seq, position) not in seen:
            slot_n = visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, position)
            seen[seq, position] = int((slot_n >= 0).sum())
            if len(slot_n):
                deepest[seq] = max(position, deepest.get(seq, 0))
        visible += seen[seq, position]
    touched = torch.zeros(pages * page_size, dtype=torch.bool, device=table_Bm.device)
    entries = 0
    for seq, position in deepest.items():
        slot_n = visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, position)
        entries += -(-len(slot_n) // page_size)
        touched[slot_n[slot_n >= 0]] = True
    return {"visible": visible, "slots": int(touched.sum()), "entries": entries}
