"""gqa_decode: dense attention of single query rows over a paged key-value cache."""

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.ops import expect
from tilesieve.ops.gqa_decode.counts import counts
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import KVCache, Pages, Partial, Rows


def _outputs(q: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Spec, ...]:
    rows, heads, _ = q.shape
    return ((rows, heads, value.shape[3]), torch.float32), ((rows, heads), torch.float32)


def _sizes(q: Tensor, key: Tensor, value: Tensor, table: Tensor, length: Tensor, max_length: int, seq: Tensor,
           position: Tensor, scale: float, sink: Tensor | None) -> dict[str, int]:  # fmt: skip
    seen = counts(table, length, max_length, seq, position, key.shape[1], key.shape[0])
    return {
        "rows": q.shape[0], "heads": q.shape[1], "kv_heads": key.shape[2], "width": q.shape[2],
        "value_width": value.shape[3], "visited": seen["visible"] * q.shape[1],
        "distinct": seen["slots"] * key.shape[2], "entries": seen["entries"], "sequences": len(length),
        "itemsize": key.element_size(), "q_itemsize": q.element_size(), "sink": int(sink is not None),
    }  # fmt: skip


def _check(q: Tensor, key: Tensor, value: Tensor, table: Tensor, length: Tensor, max_length: int, seq: Tensor,
           position: Tensor, *rest: object) -> None:  # fmt: skip
    expect.paged_contents(key, table, length, seq, position)
    for b, p in zip(seq.tolist(), position.tolist(), strict=True):
        if min(p + 1, int(length[b]) if p >= 0 else 0) > max_length:
            raise ValueError(f"pages.max_length is {max_length}; a row sees {min(p + 1, int(length[b]))} positions")


OP = define(
    Op(
        name="gqa_decode",
        schema="Tensor q, Tensor key, Tensor value, Tensor table, Tensor length, int max_length, Tensor seq, "
        "Tensor position, float scale, Tensor? sink",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("out", "lse"),
        check=_check,
    )
)


def gqa_decode(q: Tensor, cache: KVCache, pages: Pages, rows: Rows, *, scale: float | None = None,
               sink: Tensor | None = None, out: Partial | None = None, impl: str | None = None) -> Partial:  # fmt: skip
    """Attention of each row over positions 0..min(position, length - 1) of its sequence, below pages.max_length.

    q      fp32, bf16 or fp16 [R,H,D]; H = G * g, and head h reads kv head h // g
    cache  KVCache, token- or head-major, widths D and Dv
    pages  table int32 [B,max], length int32 [B], page_size that of the cache
    rows   seq, position int32 [R]
    scale  of the scores; D**-0.5 by default
    sink   fp32 [H]: a logit that is added to the denominator of out, not to lse

    Returns Partial(out fp32 [R,H,Dv], lse fp32 [R,H], natural log, sink excluded). A row that sees
    nothing (a negative position, length 0, a sequence that does not exist) gives out 0 and lse -inf.
    Positions whose table entry is no page of the cache are not read and not counted (`checked()`
    raises). Positions not seen may hold NaN; a NaN that is seen shows.

    Raises ValueError naming the argument for a wrong shape, dtype, format or device.
    """
    dims: dict[str, int] = {}
    key, value = token_views(cache)
    expect.heads(dims, q, key, value)
    expect.paged(dims, "q", q, pages, rows)
    if sink is not None:
        expect.shape(dims, "sink", sink, "H", expect.FP32)
    expect.same_device("q", q, sink=sink)
    scale = max(1, dims["D"]) ** -0.5 if scale is None else scale
    args = (q, key, value, pages.table, pages.length, pages.max_length, rows.seq, rows.position, scale, sink)
    return Partial(*call(OP, *args, out=None if out is None else (out.out, out.lse), impl=impl))
