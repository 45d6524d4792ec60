"""slots, one entry at a time. R rows, G sets per row, K picks, B sequences, M pages per sequence."""

import torch
from torch import Tensor

# Entries translated in one pass: bounds scratch memory at about 30 bytes an entry.
_ENTRIES = 1 << 16


def slots(index_RGK: Tensor, count_RG: Tensor, table_BM: Tensor, length_B: Tensor, page_size: int, seq_R: Tensor,
          position_R: Tensor) -> Tensor:  # fmt: skip
    sequences, pages = table_BM.shape
    slot_RGK = torch.full(index_RGK.shape, -1, dtype=torch.int64, device=index_RGK.device)
    for r, (seq, position) in enumerate(zip(seq_R.tolist(), position_R.tolist(), strict=True)):
        if not 0 <= seq < sequences or position < 0:
            continue
        table_M, length = table_BM[seq].tolist(), int(length_B[seq])
        for g, (index_K, count) in enumerate(zip(index_RGK[r].tolist(), count_RG[r].tolist(), strict=True)):
            slot_K = [-1] * len(index_K)
            for k, place in enumerate(index_K[: max(count, 0)]):
                # A length past the table's pages is not to be believed.
                if 0 <= place < min(length, pages * page_size) and table_M[place // page_size] >= 0:
                    slot_K[k] = table_M[place // page_size] * page_size + place % page_size
            slot_RGK[r, g] = torch.tensor(slot_K, dtype=torch.int64)
    return slot_RGK


def translate(index_RGK: Tensor, count_RG: Tensor, table_BM: Tensor, length_B: Tensor, page_size: int, seq_R: Tensor,
              position_R: Tensor, slot_RGK: Tensor) -> None:  # fmt: skip
    """The same for many entries at once, into `slot_RGK`, a pass of rows after the other."""
    rows, sets, picks = index_RGK.shape
    sequences, pages = table_BM.shape
    if index_RGK.numel() == 0:
        return
    if sequences == 0 or pages == 0:
        slot_RGK.fill_(-1)
        return
    step = max(1, _ENTRIES // (sets * picks))
    leading_K = torch.arange(picks, device=index_RGK.device)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        seq_r, place_rgk = seq_R[part].long(), index_RGK[part].long()
        sees_r = (seq_r >= 0) & (seq_r < sequences) & (position_R[part] >= 0)
        seq_r = seq_r.clamp(0, sequences - 1)
        limit_r = torch.where(sees_r, length_B[seq_r].long().clamp(max=pages * page_size), 0)
        valid_rgk = (leading_K < count_RG[part, :, None]) & (place_rgk >= 0) & (place_rgk < limit_r[:, None, None])
        place_rgk = place_rgk.masked_fill(~valid_rgk, 0)
        page_rgk = table_BM[seq_r[:, None, None], place_rgk // page_size].long()
        valid_rgk &= page_rgk >= 0
        slot_rgk = page_rgk.mul_(page_size).add_(place_rgk % page_size)
        slot_RGK[part] = slot_rgk.masked_fill_(~valid_rgk, -1)
