"""Where sparse_gqa_prefill is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.kv import kv_dtype, token_views
from tilesieve.types import Case, KVCache, Pages, Rows, Selection

ROWS = "q"


def _inputs(generator: Generator, *, rows: int, picks: int, heads: int = 6, kv_heads: int = 2, lists: int = 0,
            width: int = 8, value_width: int | None = None, lengths: tuple[int, ...] = (21, 14), page_size: int = 4,
            of: torch.dtype = torch.float32, format: str = "kv_fp32.token", sink: bool = False,
            window: bool = False, holes: bool = False, spoil: bool = False) -> dict[str, Any]:  # fmt: skip
    """The last rows of each sequence, ascending selections of what they see, counts of every size.

    window: the most recent positions. holes: -1 and future positions in the middle, duplicates, rows
    that see nothing. spoil: positions past the length, pages that do not exist, counts too large.
    """
    most = max(1, max(-(-n // page_size) for n in lengths))
    pages = len(lengths) * most + 2
    table = torch.randperm(pages, generator=generator)[: len(lengths) * most].view(len(lengths), most).int()
    length = torch.tensor(lengths, dtype=torch.int32)
    seq = (torch.arange(rows) * len(lengths) // max(rows, 1)).int()
    position = torch.empty(rows, dtype=torch.int32)
    for b, n in enumerate(lengths):
        mine = seq == b
        position[mine] = (n - int(mine.sum()) + torch.arange(int(mine.sum()))).int()
    sets = max(lists, 1)
    key = torch.rand(rows, sets, max(lengths[0], *lengths, picks), generator=generator)
    if window:
        key = -torch.arange(key.shape[-1]).expand_as(key).float()
    seen = torch.arange(key.shape[-1]) <= position[:, None, None]
    order = torch.where(seen, key, torch.inf).argsort(-1)[..., :picks]
    count = torch.minimum(torch.full((rows, sets), picks), position[:, None] + 1).clamp(min=0)
    count = torch.where(torch.rand(rows, sets, generator=generator) < 0.2, count // 2, count).int()
    listed = torch.arange(picks) < count[..., None]
    index = torch.where(listed, order, 1 << 20).sort(-1).values
    index = torch.where(listed, index, -1).int()
    if holes:
        index[..., 1::4], index[..., 2::5] = -1, position[:, None, None] + 1
        index[..., 3::6] = index[..., :1]
        index[torch.arange(picks).expand_as(index) >= count[..., None]] = 3
        index = torch.where(index < length[seq.long()][:, None, None], index, -1)
        position[::7], count[1::7] = -1, 0
    if spoil:
        index[:, :, ::4], count[::3], table[0, 1], table[-1, 0] = 1 << 20, picks + 9, -1, pages
        seq[1::6], seq[2::6] = -1, len(lengths)

    place = Pages(table, length, page_size, max(lengths))
    chosen = torch.zeros(pages, page_size, kv_heads, dtype=torch.bool)
    for page, offset, h in _reads(place, Rows(seq, position), index, count, pages, kv_heads)[0]:
        chosen[page, offset, h] = True

    def pool(columns: int) -> Tensor:
        data = torch.randn(pages, page_size, kv_heads, columns, generator=generator)
        data[~chosen] = torch.nan
        data = data.to(kv_dtype(format))
        return data.transpose(1, 2).contiguous() if format.endswith("head") else data

    cache = KVCache(pool(width), pool(width if value_width is None else value_width), format)
    if not lists:
        index, count = index[:, 0], count[:, 0]
    inputs: dict[str, Any] = {
        "q": torch.randn(rows, heads, width, generator=generator).to(of),
        "cache": cache,
        "pages": place,
        "rows": Rows(seq, position),
        "selection": Selection(index, count, None, "position"),
    }
    if sink:
        inputs["sink"] = torch.randn(heads, generator=generator)
    return inputs


def _case(name: str, error: float = 2e-6, invalid: bool = False, **shape: Any) -> Case:
    # 2e-6: fp32 scores, softmax and sums against fp64; largest seen 3.6e-7.
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


CASES = (
    _case("odd_width", rows=16, picks=9, heads=3, kv_heads=1, width=5, value_width=7),
    _case("seven_heads_sink", rows=9, picks=9, heads=14, kv_heads=2, width=64, sink=True),
    _case("gqa", rows=9, picks=6),
    _case("per_kv_head", rows=9, picks=7, lists=2, sink=True),
    _case("per_query_head", rows=7, picks=5, lists=6, of=torch.bfloat16, format="kv_bf16.token"),
    _case("head_major", rows=12, picks=8, format="kv_bf16.head", lengths=(13, 30, 9), page_size=3),
    _case("mha_value_width", rows=8, picks=6, heads=3, kv_heads=3, lists=3, width=16, value_width=10),
    _case("mqa", rows=7, picks=6, heads=16, kv_heads=1, format="kv_fp16.head", of=torch.float16),
    _case("holes", rows=19, picks=12, lists=2, holes=True, sink=True),
    _case("tiles", rows=150, picks=20, heads=3, kv_heads=1, lengths=(100, 130), page_size=16),
    _case("blocks", rows=8, picks=40, heads=3, kv_heads=3, lengths=(1100, 513), page_size=64),
    _case("window", rows=6, picks=9, window=True, lengths=(1100,), page_size=64),
    _case("more_picks_than_keys", rows=8, picks=30, lengths=(9, 3)),
    _case("length_zero", rows=4, picks=3, lengths=(0, 8)),
    _case("spoilt", invalid=True, rows=17, picks=7, lists=2, spoil=True),
    _case("no_picks", rows=3, picks=0, sink=True),
    _case("empty", rows=0, picks=4),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; cache and pages are the same."""
    one = slice(row, row + 1)
    rows, chosen = inputs["rows"], inputs["selection"]
    return {
        **inputs,
        "q": inputs["q"][one],
        "rows": Rows(rows.seq[one], rows.position[one]),
        "selection": Selection(chosen.index[one], chosen.count[one], None, chosen.space),
    }


def _reads(pages: Pages, rows: Rows, index: Tensor, count: Tensor, pool: int,
           kv_heads: int) -> tuple[set[tuple[int, int, int]], set[tuple[int, int]]]:  # fmt: skip
    """The (page, offset, kv head) that some row selects, and the page table entries that say where."""
    read, entries = set(), set()
    for r, (seq, position) in enumerate(zip(rows.seq.tolist(), rows.position.tolist(), strict=True)):
        seen = min(position + 1, int(pages.length[seq])) if 0 <= seq < len(pages.length) else 0
        for a, (listed, n) in enumerate(zip(index[r].tolist(), count[r].tolist(), strict=True)):
            heads = range(kv_heads) if index.shape[1] == 1 else [a * kv_heads // index.shape[1]]
            for p in listed[:n]:
                if 0 <= p < seen:
                    column, offset = divmod(p, pages.page_size)
                    entries.add((seq, column))
                    page = int(pages.table[seq, column])
                    read |= {(page, offset, h) for h in heads if 0 <= page < pool}
    return read, entries


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    key, value = token_views(inputs["cache"])
    rows, chosen = inputs["rows"], inputs["selection"]
    index, count = chosen.index, chosen.count
    if index.dim() == 2:
        index, count = index[:, None], count[:, None]
    read, entries = _reads(inputs["pages"], rows, index, count, *key.shape[:3:2])
    whole = [inputs["q"], index, count, inputs["pages"].length, rows.seq, rows.position, *outputs]
    if "sink" in inputs:
        whole.append(inputs["sink"])
    width = (key.shape[3] + value.shape[3]) * key.element_size()
    return len(read) * width + 4 * len(entries) + sum(t.numel() * t.element_size() for t in whole)
