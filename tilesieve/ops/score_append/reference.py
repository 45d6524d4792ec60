"""score_append, one row at a time. R rows, G kv heads, D key width, C reduced width.

Reduced in fp64, rounded once to fp32, then quantised in fp32 by the named rule.
"""

import torch
from torch import Tensor

from tilesieve.formats.score import quantise


def reduced(x_GJD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, mean_GD: Tensor | None) -> Tensor:
    """fp32 [G,J,C]: J vectors of each kv head (one key, or the queries that read it)."""
    x = x_GJD.double()
    if mean_GD is not None:
        x = x - mean_GD.double()[:, None]
    return (x[..., dims_C] if basis_GDC is None else torch.bmm(x, basis_GDC.double())).float()


def score_append(k_RGD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, mean_GD: Tensor | None,
                 data: Tensor, scale: Tensor | None, format: str, slot_R: Tensor) -> None:  # fmt: skip
    pages, page_size = data.shape[:2]
    for row, slot in enumerate(slot_R.tolist()):
        if not 0 <= slot < pages * page_size:
            continue
        page, offset = divmod(slot, page_size)
        codes_GC, scale_G = quantise(format, reduced(k_RGD[row][:, None], dims_C, basis_GDC, mean_GD)[:, 0])
        data[page, offset] = codes_GC
        if scale is not None and scale_G is not None:
            scale[page, offset] = scale_G
