"""Where gather is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.kv import kv_dtype, token_views
from tilesieve.types import Case, KVCache, Slots

ROWS = "slots"


def _inputs(generator: Generator, *, rows: int, picks: int, kv_heads: int = 2, lists: int = 0, width: int = 8,
            value_width: int | None = None, pages: int = 6, page_size: int = 4, format: str = "kv_fp32.token",
            ints: torch.dtype = torch.int64, ascending: bool = False,
            spoil: bool = False) -> dict[str, Any]:  # fmt: skip
    """Random slots with repeats, -1 in the middle, counts of every size; NaN in slot 0, which nobody
    lists. spoil: slots past the pool."""
    total = pages * page_size
    shape = (rows, *([lists] if lists else []), picks)
    slot = torch.randint(1, max(total, 2), shape, generator=generator) if total else torch.full(shape, -1)
    if ascending:
        slot = slot.sort(-1).values
    slot[..., 2::5] = -1
    if spoil:
        slot[..., ::3] = total + 1
    count = torch.randint(0, picks + 1, shape[:-1], generator=generator, dtype=torch.int32)
    count[::2] = picks
    slot[torch.arange(picks) >= count[..., None]] = 0

    def pool(columns: int) -> Tensor:
        data = torch.randn(pages, page_size, kv_heads, columns, generator=generator)
        data[:1, :1] = torch.nan
        data = data.to(kv_dtype(format))
        return data.transpose(1, 2).contiguous() if format.endswith("head") else data

    cache = KVCache(pool(width), pool(width if value_width is None else value_width), format)
    return {"cache": cache, "slots": Slots(slot.to(ints), count)}


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), 0.0, invalid)


CASES = (
    _case("small", rows=5, picks=7),
    _case("per_kv_head", rows=6, picks=9, lists=2, ints=torch.int32, ascending=True),
    _case("head_major", rows=7, picks=12, kv_heads=3, lists=3, format="kv_bf16.head", value_width=5),
    _case("head_major_shared", rows=4, picks=12, format="kv_fp16.head", ascending=True),
    _case("value_width", rows=3, picks=8, width=16, value_width=10, page_size=3, format="kv_bf16.token"),
    _case("one_row", rows=1, picks=300, kv_heads=1, pages=40, page_size=16, ascending=True),
    _case("spoilt", invalid=True, rows=5, picks=9, spoil=True),
    _case("no_picks", rows=3, picks=0),
    _case("empty", rows=0, picks=4),
    _case("empty_pool", rows=2, picks=3, pages=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the cache is the same."""
    one = slice(row, row + 1)
    slots: Slots = inputs["slots"]
    return {**inputs, "slots": Slots(slots.slot[one], slots.count[one])}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    key, value = token_views(inputs["cache"])
    slots: Slots = inputs["slots"]
    total, kv_heads = key.shape[0] * key.shape[1], key.shape[2]
    read: set[tuple[int, int]] = set()
    for listed, count in zip(slots.slot.tolist(), slots.count.tolist(), strict=True):
        for h in range(kv_heads):
            mine, n = (listed[h], count[h]) if slots.slot.dim() == 3 else (listed, count)
            read |= {(h, s) for s in mine[:n] if 0 <= s < total}
    width = (key.shape[3] + value.shape[3]) * key.element_size()
    return len(read) * width + sum(t.numel() * t.element_size() for t in [slots.slot, slots.count, *outputs])
