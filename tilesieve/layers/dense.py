"""Dense attention of many rows of one sequence, through torch's own SDPA."""

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.types import KVCache, Pages


def contiguous(kv: KVCache, pages: Pages, seq: int, length: int) -> tuple[Tensor, Tensor]:
    """Key [G,length,D] and value [G,length,Dv] of a sequence, out of its pages."""
    key, value = token_views(kv)
    table = pages.table[seq, : -(-length // pages.page_size)].long()

    def flat(cache: Tensor) -> Tensor:
        return cache[table].flatten(0, 1)[:length].transpose(0, 1)

    return flat(key), flat(value)


def dense_rows(q: Tensor, kv: KVCache, pages: Pages, seq: int, start: int, *, scale: float | None = None,
               window: int | None = None) -> Tensor:  # fmt: skip
    """Rows start, start + 1, ... of `seq` over all they see. q [R,H,D] -> [R,H,Dv], q's dtype.

    window: a row sees only its most recent `window` positions (a layer that the model itself
    limits), itself included.
    """
    rows, heads, _ = q.shape
    length = start + rows
    key, value = (t.to(q.dtype)[None] for t in contiguous(kv, pages, seq, length))
    mask = None
    if start > 0 or window is not None:
        column = torch.arange(length, device=q.device)
        row = torch.arange(start, length, device=q.device)[:, None]
        mask = column <= row
        if window is not None:
            mask &= column > row - window
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], key, value, attn_mask=mask, is_causal=mask is None, scale=scale,
        enable_gqa=heads != key.shape[1],
    )  # fmt: skip
    return out[0].transpose(0, 1)
