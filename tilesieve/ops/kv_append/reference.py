"""kv_append, one row at a time in fp64. R rows, G kv heads, D key width, C rotated pairs."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos_C: Tensor, sin_C: Tensor, rope: str) -> Tensor:
    """The first 2C of x's last dimension turned by the angles; the rest as it is."""
    pairs = cos_C.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if rope == "half":
        a, b = turned[..., :pairs], turned[..., pairs:]
        return torch.cat([a * cos_C - b * sin_C, b * cos_C + a * sin_C, rest], -1)
    a, b = turned[..., 0::2], turned[..., 1::2]
    mixed = torch.stack([a * cos_C - b * sin_C, b * cos_C + a * sin_C], -1).flatten(-2)
    return torch.cat([mixed, rest], -1)


def kv_append(k_RGD: Tensor, v_RGD: Tensor, key: Tensor, value: Tensor, slot_R: Tensor, norm_D: Tensor | None,
              eps: float, cos_RC: Tensor | None, sin_RC: Tensor | None, rope: str) -> None:  # fmt: skip
    pages, page_size = key.shape[:2]
    for row, slot in enumerate(slot_R.tolist()):
        if not 0 <= slot < pages * page_size:
            continue
        k_GD = k_RGD[row].double()
        if norm_D is not None:
            k_GD = k_GD * (k_GD.square().mean(-1, keepdim=True) + eps).rsqrt() * norm_D.double()
        if cos_RC is not None and sin_RC is not None:
            k_GD = rotate(k_GD, cos_RC[row].double(), sin_RC[row].double(), rope)
        page, offset = divmod(slot, page_size)
        key[page, offset] = k_GD.to(key.dtype)
        value[page, offset] = v_RGD[row].to(value.dtype)
