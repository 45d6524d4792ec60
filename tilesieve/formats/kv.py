"""Paged key-value caches: kv_bf16, kv_fp16 and kv_fp32, token-major or head-major.

A tag is "<format>.<layout>": "kv_bf16.token" keeps a token's heads together ([pages,P,G,D]),
"kv_bf16.head" keeps a head's tokens together ([pages,G,P,D]): a gather of one head then moves
rows that lie side by side.
"""

import torch
from torch import Tensor

from tilesieve.types import KVCache

DTYPES = (("kv_bf16", torch.bfloat16), ("kv_fp16", torch.float16), ("kv_fp32", torch.float32))
LAYOUTS = ("token", "head")
FORMATS = tuple(f"{name}.{layout}" for name, _ in DTYPES for layout in LAYOUTS)


def kv_dtype(format: str) -> torch.dtype:
    """The element type behind a tag. Raises ValueError for an unknown tag."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; allowed: {', '.join(FORMATS)}")
    return dict(DTYPES)[format.partition(".")[0]]


def new_kv(format: str, pages: int, page_size: int, heads: int, width: int, value_width: int | None = None,
           device: torch.device | str = "cpu") -> KVCache:  # fmt: skip
    """An empty cache (zeros) of `pages` pages: heads G, key width D, value width Dv (D by default)."""
    dtype = kv_dtype(format)
    value_width = width if value_width is None else value_width

    def make(columns: int) -> Tensor:
        shape = (pages, page_size, heads) if format.endswith(".token") else (pages, heads, page_size)
        return torch.zeros(*shape, columns, dtype=dtype, device=device)

    return KVCache(make(width), make(value_width), format)


def token_views(cache: KVCache) -> tuple[Tensor, Tensor]:
    """Key [pages,P,G,D] and value [pages,P,G,Dv], as views, whatever the layout.

    Raises ValueError when the tensors are not what the tag says.
    """
    if not isinstance(cache, KVCache):
        raise ValueError(f"cache is {type(cache).__name__}; allowed: KVCache")
    dtype = kv_dtype(cache.format)
    for name, tensor in (("cache.key", cache.key), ("cache.value", cache.value)):
        if tensor.dim() != 4 or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; its tag {cache.format!r} says "
                             f"{dtype} with 4 dimensions")  # fmt: skip
    if cache.key.shape[:3] != cache.value.shape[:3]:
        raise ValueError(f"cache.key is {tuple(cache.key.shape)} and cache.value {tuple(cache.value.shape)}; "
                         "they must agree but for the last dimension")  # fmt: skip
    if cache.format.endswith(".token"):
        return cache.key, cache.value
    return cache.key.transpose(1, 2), cache.value.transpose(1, 2)
