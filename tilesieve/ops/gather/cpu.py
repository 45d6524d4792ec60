"""gather, all rows at once: one copy of rows into the packed order."""

import torch
from torch import Tensor


def gather(key_pPGD: Tensor, value_pPGE: Tensor, slot_RAK: Tensor, count_RA: Tensor, *,
           out: tuple[Tensor, ...]) -> None:  # fmt: skip
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    counted_RAK = torch.arange(slot_RAK.shape[2], device=slot_RAK.device) < count_RA[..., None]
    missing_RAK = ~(counted_RAK & (slot_RAK >= 0) & (slot_RAK < pages * page_size))
    slot_RAK = torch.where(missing_RAK, 0, slot_RAK).long()
    page_RAK, offset_RAK = slot_RAK // max(1, page_size), slot_RAK % max(1, page_size)
    head_G1 = torch.arange(kv_heads, device=slot_RAK.device)[:, None]
    for pool_pPGC, packed_RGKC in zip((key_pPGD, value_pPGE), out, strict=True):
        if pool_pPGC.numel() == 0:
            packed_RGKC.zero_()
            continue
        packed_RGKC.copy_(pool_pPGC[page_RAK, offset_RAK, head_G1])
        if bool(missing_RAK.any()):
            # Replaced, not multiplied by zero: the row read in a missing one's place may be NaN.
            packed_RGKC.masked_fill_(missing_RAK[..., None], 0)
