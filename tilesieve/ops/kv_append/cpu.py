"""kv_append, all rows at once in fp32."""

import torch
from torch import Tensor

from tilesieve.ops.kv_append.reference import rotate


def kv_append(k_RGD: Tensor, v_RGD: Tensor, key: Tensor, value: Tensor, slot_R: Tensor, norm_D: Tensor | None,
              eps: float, cos_RC: Tensor | None, sin_RC: Tensor | None, rope: str) -> None:  # fmt: skip
    pages, page_size = key.shape[:2]
    # An indexed write with a repeated index may land in any order: keep each slot's last row.
    sorted_R, order_R = slot_R.long().sort(stable=True)
    last_R = torch.ones_like(sorted_R, dtype=torch.bool)
    last_R[:-1] = sorted_R[1:] != sorted_R[:-1]
    keep = last_R & (sorted_R >= 0) & (sorted_R < pages * page_size)
    row, slot = order_R[keep], sorted_R[keep]
    k = k_RGD[row]
    if norm_D is not None or cos_RC is not None:
        k = k.float()
    if norm_D is not None:
        # Squares are summed in fp64: a sum in fp32 would depend on how torch cuts the row up.
        k = k * (k.double().square().mean(-1, keepdim=True) + eps).rsqrt().float() * norm_D
    if cos_RC is not None and sin_RC is not None:
        k = rotate(k, cos_RC[row][:, None], sin_RC[row][:, None], rope)
    page, offset = slot // page_size, slot % page_size
    key[page, offset] = k.to(key.dtype)
    value[page, offset] = v_RGD[row].to(value.dtype)
