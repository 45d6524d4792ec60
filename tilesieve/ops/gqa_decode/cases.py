"""Where gqa_decode is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.kv import kv_dtype, token_views
from tilesieve.types import Case, KVCache, Pages, Rows

ROWS = "q"


def _inputs(generator: Generator, *, rows: int, heads: int = 6, kv_heads: int = 2, width: int = 8,
            value_width: int | None = None, lengths: tuple[int, ...] = (13, 7), page_size: int = 4,
            of: torch.dtype = torch.float32, format: str = "kv_fp32.token", sink: bool = False, spoil: bool = False,
            shared: bool = False) -> dict[str, Any]:  # fmt: skip
    """Rows at random positions of sequences whose pages lie anywhere; NaN wherever no row may look.

    shared: all sequences begin with the same page. spoil: rows and pages that checked() refuses.
    """
    most = max(1, max(-(-n // page_size) for n in lengths))
    pages = len(lengths) * most + 2
    table = torch.randperm(pages, generator=generator)[: len(lengths) * most].view(len(lengths), most).int()
    if shared:
        table[:, 0] = table[0, 0]
    used = torch.zeros(pages, page_size, dtype=torch.bool)
    for b, n in enumerate(lengths):
        for p in range(n):
            used[int(table[b, p // page_size]), p % page_size] = True
    if spoil:
        table[0, 0], table[1, -1] = -1, pages + 3

    def pool(columns: int) -> Tensor:
        data = torch.randn(pages, page_size, kv_heads, columns, generator=generator)
        data[~used] = torch.nan  # tails of pages and pages of nobody
        data = data.to(kv_dtype(format))
        return data.transpose(1, 2).contiguous() if format.endswith("head") else data

    length = torch.tensor(lengths, dtype=torch.int32)
    seq = torch.randint(0, len(lengths), (rows,), generator=generator).int()
    # Some positions lie past the length, where rows see all there is.
    position = (torch.rand(rows, generator=generator) * (length[seq.long()] + 3)).int()
    position[-1:] = 10_000
    position[1::5] = -1
    if spoil:
        seq[2::5] = len(lengths)
    inputs: dict[str, Any] = {
        "q": torch.randn(rows, heads, width, generator=generator).to(of),
        "cache": KVCache(pool(width), pool(width if value_width is None else value_width), format),
        "pages": Pages(table, length, page_size, max(lengths)),
        "rows": Rows(seq, position),
    }
    if sink:
        inputs["sink"] = torch.randn(heads, generator=generator)
    return inputs


def _case(name: str, error: float = 2e-6, invalid: bool = False, **shape: Any) -> Case:
    # 2e-6: fp32 scores, softmax and sums against fp64; largest seen 8.8e-7.
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


CASES = (
    _case("odd_width", rows=16, heads=3, kv_heads=1, width=5, value_width=7),
    _case("seven_heads_sink", rows=9, heads=14, kv_heads=2, width=64, sink=True),
    _case("gqa", rows=7),
    _case("bf16_head_major", rows=9, of=torch.bfloat16, format="kv_bf16.head", sink=True),
    _case("mha_value_width", rows=6, heads=3, kv_heads=3, width=16, value_width=10, page_size=3),
    _case("mqa", rows=5, heads=16, kv_heads=1, format="kv_fp16.token", of=torch.float16),
    _case("blocks", rows=6, heads=9, kv_heads=3, width=16, lengths=(600, 512, 1100), page_size=16),
    _case("one_row", rows=1, lengths=(513,), page_size=64, sink=True),
    _case("shared_pages", rows=9, lengths=(9, 12, 8), shared=True, format="kv_bf16.token"),
    _case("length_zero", rows=6, lengths=(0, 5)),
    _case("nothing", rows=3, lengths=(0,), sink=True),
    _case("spoilt", invalid=True, rows=11, spoil=True),
    _case("empty", rows=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; cache and pages are the same."""
    one = slice(row, row + 1)
    rows: Rows = inputs["rows"]
    return {**inputs, "q": inputs["q"][one], "rows": Rows(rows.seq[one], rows.position[one])}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    pages: Pages = inputs["pages"]
    key, value = token_views(inputs["cache"])
    slots, entries = set(), set()
    for seq, position in zip(inputs["rows"].seq.tolist(), inputs["rows"].position.tolist(), strict=True):
        if 0 <= seq < len(pages.length):
            for p in range(min(position + 1, int(pages.length[seq]))):
                entries.add((seq, p // pages.page_size))
                page = int(pages.table[seq, p // pages.page_size])
                if 0 <= page < len(key):
                    slots.add((page, p % pages.page_size))
    index = [pages.length, inputs["rows"].seq, inputs["rows"].position]
    whole = [inputs["q"], *index, *([inputs["sink"]] if "sink" in inputs else []), *outputs]
    token = key[0, 0].numel() + value[0, 0].numel()
    return len(slots) * token * key.element_size() + 4 * len(entries) + sum(t.numel() * t.element_size() for t in whole)
