"""gqa_decode, a row at a time: its visible rows gathered once, then products over key blocks."""

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode import reference
from tilesieve.ops.host import attend_slots, settled


def gqa_decode(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, table_Bm: Tensor, length_B: Tensor,
               max_length: int, seq_R: Tensor, position_R: Tensor, scale: float, sink_H: Tensor | None, *,
               out: tuple[Tensor, ...]) -> None:  # fmt: skip
    out_RHE, lse_RH = out
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    rows, heads, width = q_RHD.shape
    query_RGgD = (q_RHD.float() * scale).view(rows, kv_heads, heads // kv_heads, width)
    head_G = torch.arange(kv_heads, device=q_RHD.device)
    for r, (seq, position) in enumerate(zip(seq_R.tolist(), position_R.tolist(), strict=True)):
        slot_n = reference.visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, position)
        # A copy: rows of odd widths begin off a 16-byte border, and the bits of a product depend on that.
        out_GgE, lse_Gg = attend_slots(query_RGgD[r].clone(), key_pPGD, value_pPGE, slot_n[None], head_G)
        lse_H = lse_Gg.flatten()
        out_HE = reference.with_sink(out_GgE.flatten(0, 1), lse_H, sink_H)
        out_RHE[r], lse_RH[r] = out_HE, lse_H
        if not settled(out_HE, lse_H):
            one = slice(r, r + 1)
            out_RHE[one], lse_RH[one] = reference.gqa_decode(
                q_RHD[one], key_pPGD, value_pPGE, table_Bm, length_B, max_length, seq_R[one], position_R[one],
                scale, sink_H,
            )  # fmt: skip
