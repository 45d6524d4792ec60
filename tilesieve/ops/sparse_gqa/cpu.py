"""sparse_gqa, a row at a time: its slots gathered, then products over key blocks. Work grows with K."""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import with_sink
from tilesieve.ops.host import attend_slots, settled
from tilesieve.ops.sparse_gqa import reference


def sparse_gqa(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, slot_RAK: Tensor, count_RA: Tensor,
               scale: float, sink_H: Tensor | None, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    out_RHE, lse_RH = out
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    rows, heads, width = q_RHD.shape
    device = q_RHD.device
    # Query heads that share a list and a kv head go into one product.
    units = max(slot_RAK.shape[1], kv_heads)
    head_U = torch.arange(units, device=device) * kv_heads // units
    query_RUgD = (q_RHD.float() * scale).view(rows, units, heads // units, width)
    counted_RAK = torch.arange(slot_RAK.shape[-1], device=device) < count_RA[..., None]
    valid_RAK = counted_RAK & (slot_RAK >= 0) & (slot_RAK < pages * page_size)
    slot_RAK = torch.where(valid_RAK, slot_RAK, -1).long()
    for r in range(rows):
        # A copy: rows of odd widths begin off a 16-byte border, and the bits of a product depend on that.
        out_UgE, lse_Ug = attend_slots(query_RUgD[r].clone(), key_pPGD, value_pPGE, slot_RAK[r], head_U)
        lse_H = lse_Ug.flatten()
        out_HE = with_sink(out_UgE.flatten(0, 1), lse_H, sink_H)
        out_RHE[r], lse_RH[r] = out_HE, lse_H
        if not settled(out_HE, lse_H):
            one = slice(r, r + 1)
            out_RHE[one], lse_RH[one] = reference.sparse_gqa(
                q_RHD[one], key_pPGD, value_pPGE, slot_RAK[one], count_RA[one], scale, sink_H
            )
