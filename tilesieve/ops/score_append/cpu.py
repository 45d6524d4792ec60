"""score_append, all rows at once."""

import torch
from torch import Tensor

from tilesieve.formats.score import quantise, reduce


def score_append(k_RGD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, mean_GD: Tensor | None,
                 data: Tensor, scale: Tensor | None, format: str, slot_R: Tensor) -> None:  # fmt: skip
    pages, page_size = data.shape[:2]
    # An indexed write with a repeated index may land in any order: keep each slot's last row.
    sorted_R, order_R = slot_R.long().sort(stable=True)
    last_R = torch.ones_like(sorted_R, dtype=torch.bool)
    last_R[:-1] = sorted_R[1:] != sorted_R[:-1]
    keep = last_R & (sorted_R >= 0) & (sorted_R < pages * page_size)
    row, slot = order_R[keep], sorted_R[keep]
    codes, scales = quantise(format, reduce(k_RGD[row][:, :, None], dims_C, basis_GDC, mean_GD)[:, :, 0])
    page, offset = slot // page_size, slot % page_size
    data[page, offset] = codes
    if scale is not None and scales is not None:
        scale[page, offset] = scales
