"""sparse_gqa_prefill: attention of many query rows, each over its own selection of positions."""

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.ops.sparse_gqa_prefill.counts import counts
from tilesieve.types import KVCache, Pages, Partial, Rows, Selection


def _outputs(q: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Spec, ...]:
    rows, heads, _ = q.shape
    return ((rows, heads, value.shape[3]), torch.float32), ((rows, heads), torch.float32)


def _sizes(q: Tensor, key: Tensor, value: Tensor, table: Tensor, length: Tensor, max_length: int, seq: Tensor,
           position: Tensor, index: Tensor, count: Tensor, scale: float,
           sink: Tensor | None) -> dict[str, int]:  # fmt: skip
    pages, page_size, kv_heads = key.shape[:3]
    return {
        "rows": q.shape[0], "heads": q.shape[1], "kv_heads": kv_heads, "width": q.shape[2],
        "value_width": value.shape[3], "picks": index.shape[2], "lists": index.shape[1], "sequences": len(length),
        "itemsize": key.element_size(), "q_itemsize": q.element_size(), "sink": int(sink is not None),
        **counts(table, length, max_length, page_size, pages, seq, position, index, count, q.shape[1], kv_heads),
    }  # fmt: skip


def _check(q: Tensor, key: Tensor, value: Tensor, table: Tensor, length: Tensor, max_length: int, seq: Tensor,
           position: Tensor, index: Tensor, count: Tensor, *rest: object) -> None:  # fmt: skip
    expect.paged_contents(key, table, length, seq, position)
    if bool((count < 0).any()) or bool((count > index.shape[2]).any()):
        raise ValueError(f"selection.count is {int(count.min())} to {int(count.max())}; allowed: 0 to {index.shape[2]}")
    counted = (torch.arange(index.shape[2], device=index.device) < count[..., None]) & (position >= 0)[:, None, None]
    for b, n in enumerate(length.tolist()):
        here = index[seq == b][counted[seq == b]]
        if bool((here >= n).any()):
            raise ValueError(f"selection.index names position {int(here.max())}; sequence {b} has {n}")


OP = define(
    Op(
        name="sparse_gqa_prefill",
        schema="Tensor q, Tensor key, Tensor value, Tensor table, Tensor length, int max_length, Tensor seq, "
        "Tensor position, Tensor index, Tensor count, float scale, Tensor? sink",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("out", "lse"),
        check=_check,
    )
)


def sparse_gqa_prefill(q: Tensor, cache: KVCache, pages: Pages, rows: Rows, selection: Selection, *,
                       scale: float | None = None, sink: Tensor | None = None, out: Partial | None = None,
                       impl: str | None = None) -> Partial:  # fmt: skip
    """Attention of each row over the positions it selected. The selection is a mask over the row's sequence.

    q          fp32, bf16 or fp16 [R,H,D]; H = G * g, and head h reads kv head h // g
    cache      KVCache, token- or head-major, widths D and Dv
    pages      table int32 [B,max], length int32 [B], page_size that of the cache
    rows       seq, position int32 [R]
    selection  space "position"; index int32 and count int32: [R,K] and [R], one list for all heads;
               [R,G,K] and [R,G], one per kv head; or [R,H,K] and [R,H], one per query head. A
               position p counts if it stands within the count and 0 <= p <= position, p < length.
               It counts once however often it is listed (in sparse_gqa as often as it is listed)
    scale      of the scores; D**-0.5 by default
    sink       fp32 [H]: a logit that is added to the denominator of out, not to lse

    Returns Partial(out fp32 [R,H,Dv], lse fp32 [R,H], natural log, sink excluded). A row that selects
    nothing it may see gives out 0 and lse -inf. Positions whose table entry is no page of the cache
    are not read and not counted (`checked()` raises, and for positions past the length too; later
    ones than the row's own are a mask's business). Positions not selected may hold NaN; a NaN that
    is selected shows.

    The CPU form multiplies every block of 512 keys in which a row of its tile selects something: it
    is made for many rows of few sequences. For single rows take slots and sparse_gqa.

    Raises ValueError naming the argument for another space, a wrong shape, dtype, format or device.
    """
    if selection.space != "position":
        raise ValueError(f"selection.space is {selection.space!r}; allowed: 'position'")
    dims: dict[str, int] = {}
    key, value = token_views(cache)
    expect.heads(dims, q, key, value)
    expect.paged(dims, "q", q, pages, rows)
    index, count = selection.index, selection.count
    per_kv_head = index.dim() == 3 and index.shape[1] == dims["G"]
    letters = "R K" if index.dim() == 2 else "R G K" if per_kv_head else "R H K"
    expect.shape(dims, "selection.index", index, letters, expect.INT32)
    expect.shape(dims, "selection.count", count, letters.removesuffix(" K"), expect.INT32)
    if sink is not None:
        expect.shape(dims, "sink", sink, "H", expect.FP32)
    expect.same_device("q", q, sink=sink, **{"selection.index": index, "selection.count": count})
    scale = max(1, dims["D"]) ** -0.5 if scale is None else scale
    if index.dim() == 2:
        index, count = index[:, None], count[:, None]
    args = (q, key, value, pages.table, pages.length, pages.max_length, rows.seq, rows.position, index, count, scale,
            sink)  # fmt: skip
    return Partial(*call(OP, *args, out=None if out is None else (out.out, out.lse), impl=impl))
