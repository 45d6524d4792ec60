"""Where sparse_gqa is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.kv import kv_dtype, token_views
from tilesieve.types import Case, KVCache, Slots

ROWS = "q"


def _inputs(generator: Generator, *, rows: int, picks: int, heads: int = 6, kv_heads: int = 2, lists: int = 0,
            width: int = 8, value_width: int | None = None, pages: int = 8, page_size: int = 4,
            of: torch.dtype = torch.float32, format: str = "kv_fp32.token", ints: torch.dtype = torch.int64,
            sink: bool = False, holes: bool = False, spoil: bool = False) -> dict[str, Any]:  # fmt: skip
    """Distinct random slots, counts of every size; NaN in the slots that no list names.

    holes: entries of -1 in the middle. spoil: slots past the pool and a slot listed twice.
    """
    total = pages * page_size
    order = torch.rand(rows, max(lists, 1), max(total, picks), generator=generator).argsort(-1)
    slot = order[..., :picks].contiguous()
    slot[slot >= total] = -1
    unread = torch.randperm(total, generator=generator)[: total // 8]
    slot[torch.isin(slot, unread)] = -1
    count = (torch.rand(rows, max(lists, 1), generator=generator) * (picks + 2)).int().clamp(max=picks)
    count[1::3] = picks
    if holes:
        slot[..., 1::3] = -1
        count[::4] = 0
    if spoil:
        slot[..., ::5] = total + 7
        slot[..., 1:3] = 2
    slot[torch.arange(picks) >= count[..., None]] = int(unread[0]) if len(unread) else -1
    if not lists:
        slot, count = slot[:, 0], count[:, 0]

    def pool(columns: int) -> Tensor:
        data = torch.randn(total, kv_heads, columns, generator=generator)
        data[unread] = torch.nan
        data = data.view(pages, page_size, kv_heads, columns).to(kv_dtype(format))
        return data.transpose(1, 2).contiguous() if format.endswith("head") else data

    inputs: dict[str, Any] = {
        "q": torch.randn(rows, heads, width, generator=generator).to(of),
        "cache": KVCache(pool(width), pool(width if value_width is None else value_width), format),
        "slots": Slots(slot.to(ints), count),
    }
    if sink:
        inputs["sink"] = torch.randn(heads, generator=generator)
    return inputs


def _case(name: str, error: float = 2e-6, invalid: bool = False, **shape: Any) -> Case:
    # 2e-6: fp32 scores, softmax and sums against fp64; largest seen 7.4e-7.
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


CASES = (
    _case("odd_width", rows=16, picks=9, heads=3, kv_heads=1, width=5, value_width=7),
    _case("seven_heads_sink", rows=9, picks=9, heads=14, kv_heads=2, width=64, sink=True),
    _case("gqa", rows=7, picks=9),
    _case("per_kv_head", rows=7, picks=9, lists=2, ints=torch.int32, sink=True),
    _case("per_query_head", rows=5, picks=9, lists=6, format="kv_bf16.token", of=torch.bfloat16),
    _case("head_major", rows=9, picks=12, format="kv_bf16.head", sink=True),
    _case("head_major_per_head", rows=9, picks=12, lists=2, format="kv_fp16.head", of=torch.float16),
    _case("mha_value_width", rows=6, picks=11, heads=3, kv_heads=3, lists=3, width=16, value_width=10, page_size=3),
    _case("mqa", rows=5, picks=20, heads=16, kv_heads=1),
    _case("blocks", rows=5, picks=1100, heads=9, kv_heads=3, width=16, pages=80, page_size=16, holes=True),
    _case("exactly_a_block", rows=3, picks=512, lists=2, pages=40, page_size=16),
    _case("one_row", rows=1, picks=256, pages=20, page_size=64, sink=True),
    _case("holes", rows=9, picks=10, holes=True, lists=2, sink=True),
    _case("spoilt", invalid=True, rows=9, picks=10, spoil=True),
    _case("no_picks", rows=3, picks=0, sink=True),
    _case("empty", rows=0, picks=4),
    _case("empty_pool", rows=2, picks=3, pages=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the cache is the same."""
    one = slice(row, row + 1)
    slots: Slots = inputs["slots"]
    return {**inputs, "q": inputs["q"][one], "slots": Slots(slots.slot[one], slots.count[one])}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    key, value = token_views(inputs["cache"])
    slots: Slots = inputs["slots"]
    kv_heads, total = key.shape[2], key.shape[0] * key.shape[1]
    slot = slots.slot if slots.slot.dim() == 3 else slots.slot[:, None]
    count = slots.count if slots.count.dim() == 2 else slots.count[:, None]
    read: set[tuple[int, int]] = set()
    for lists, counts in zip(slot.tolist(), count.tolist(), strict=True):
        for a, (listed, n) in enumerate(zip(lists, counts, strict=True)):
            heads = range(kv_heads) if len(lists) == 1 else [a * kv_heads // len(lists)]
            read |= {(h, s) for h in heads for s in listed[:n] if 0 <= s < total}
    whole = [inputs["q"], slots.slot, slots.count, *([inputs["sink"]] if "sink" in inputs else []), *outputs]
    width = (key.shape[3] + value.shape[3]) * key.element_size()
    return len(read) * width + sum(t.numel() * t.element_size() for t in whole)
