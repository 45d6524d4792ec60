"""lowrank: scores of queries against the reduced keys of their sequences."""

import torch
from torch import Tensor

from tilesieve.formats.score import SCALED, require, require_projection
from tilesieve.ops import expect
from tilesieve.ops.lowrank.reference import visible
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Pages, Projection, Rows, ScoreCache

# Products of int8 codes, summed over this many columns, are integers that fp32 holds exactly.
INT8_COLUMNS = (1 << 24) // 127**2  # 1040


def _outputs(q: Tensor, dims: Tensor | None, basis: Tensor | None, data: Tensor, key_scale: Tensor | None, format: str,
             table: Tensor, length: Tensor, max_length: int, seq: Tensor, position: Tensor,
             scale: float) -> tuple[Spec, ...]:  # fmt: skip
    return (((q.shape[0], q.shape[1], max_length), torch.float32),)


def _slots_seen(data: Tensor, table: Tensor, length: Tensor, max_length: int, seq: Tensor,
                position: Tensor) -> tuple[list[int], dict[int, Tensor]]:  # fmt: skip
    """How many positions each row may look at, and per sequence the slots that its deepest row may: -1 at a hole."""
    pages, page_size = data.shape[:2]
    limits = visible(table, length, page_size, max_length, seq, position).tolist()
    deepest: dict[int, int] = {}
    for s, limit in zip(seq.tolist(), limits, strict=True):
        if limit:
            deepest[s] = max(limit, deepest.get(s, 0))
    slots = {}
    for s, limit in deepest.items():
        p = torch.arange(limit, device=table.device)
        page = table[s, p // page_size].long()
        slots[s] = torch.where((page >= 0) & (page < pages), page * page_size + p % page_size, -1)
    return limits, slots


def _sizes(q: Tensor, dims: Tensor | None, basis: Tensor | None, data: Tensor, key_scale: Tensor | None, format: str,
           table: Tensor, length: Tensor, max_length: int, seq: Tensor, position: Tensor,
           scale: float) -> dict[str, int]:  # fmt: skip
    limits, slots = _slots_seen(data, table, length, max_length, seq, position)
    held = {s: (slot >= 0).cumsum(0).tolist() for s, slot in slots.items()}
    found = [held[s][limit - 1] if limit else 0 for s, limit in zip(seq.tolist(), limits, strict=True)]
    every = torch.cat([*slots.values(), seq.new_empty(0)])
    asked = seq[(position >= 0) & (seq >= 0) & (seq < len(length))]
    return {
        "rows": q.shape[0], "live": sum(n > 0 for n in found), "heads": q.shape[1], "kv_heads": data.shape[2],
        "width": q.shape[2], "columns": data.shape[3], "length": max_length,
        "scanned": sum(found), "keys": len(every[every >= 0].unique()),
        "entries": sum(-(-len(slot) // data.shape[1]) for slot in slots.values()), "sequences": len(asked.unique()),
        "itemsize": q.element_size(), "cache_itemsize": data.element_size(),
        "quantised": int(format in SCALED), "basis": int(basis is not None),
    }  # fmt: skip


def _check(q: Tensor, dims: Tensor | None, basis: Tensor | None, data: Tensor, key_scale: Tensor | None, format: str,
           table: Tensor, length: Tensor, max_length: int, seq: Tensor, position: Tensor,
           scale: float) -> None:  # fmt: skip
    pages, page_size = data.shape[:2]
    most = min(max_length, table.shape[1] * page_size)
    if bool(((length < 0) | (length > most)).any()):
        raise ValueError(f"pages.length is {length.tolist()}; allowed: 0 to {most}, which max_length and table hold")
    if bool(((position >= 0) & ((seq < 0) | (seq >= len(length)))).any()):
        raise ValueError(f"rows.seq is {seq.tolist()}; allowed: 0 to {len(length) - 1}")
    used = torch.arange(table.shape[1], device=table.device) * page_size < length[:, None]
    if bool((used & (table >= pages)).any()):
        raise ValueError(f"pages.table names page {int(table[used].max())}; the cache has {pages}")
    if dims is not None and bool(((dims < 0) | (dims >= q.shape[2])).any()):
        raise ValueError(f"projection.dims is {dims.tolist()}; allowed: 0 to D - 1 = {q.shape[2] - 1}")
    if key_scale is not None:
        _, slots = _slots_seen(data, table, length, max_length, seq, position)
        seen = torch.cat([*slots.values(), seq.new_empty(0)]).long()
        seen = seen[seen >= 0]
        scales = key_scale[seen // page_size, seen % page_size]
        if bool((~scales.isfinite() | (scales < 0)).any()):
            raise ValueError("cache.scale holds a negative number, a NaN or an infinity where a row reads it")


def _inexact(q: Tensor, dims: Tensor | None, basis: Tensor | None, data: Tensor, key_scale: Tensor | None,
             format: str, *rest: object) -> str | None:  # fmt: skip
    if format == "score_int8" and data.shape[3] > INT8_COLUMNS:
        return f"int8 sums are exact in fp32 up to d_score = {INT8_COLUMNS}; it is {data.shape[3]}"
    return None


OP = define(
    Op(
        name="lowrank",
        schema="Tensor q, Tensor? dims, Tensor? basis, Tensor data, Tensor? key_scale, str format, Tensor table, "
        "Tensor length, int max_length, Tensor seq, Tensor position, float scale",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("scores",),
        check=_check,
        limits=(("cpu", _inexact),),
    )
)


def lowrank(q: Tensor, projection: Projection, cache: ScoreCache, pages: Pages, rows: Rows, *,
            scale: float | None = None, out: Tensor | None = None, impl: str | None = None) -> Tensor:  # fmt: skip
    """Score every query head against the reduced keys that its row sees.

    scores[r,h,p] = scale * (reduced q[r,h] . reduced key[p, h // (H / G)])

    for 0 <= p <= rows.position[r] below the sequence's length, where a page holds p; -inf at every
    other of the L = pages.max_length columns. So a row with a negative position or a sequence
    outside the table, and a column without page (a table entry < 0 or past the pool), is -inf,
    whatever memory holds there.

    q           fp32, bf16 or fp16 [R,H,D], H a multiple of G; reduced in fp64, rounded once to fp32
    projection  the one that score_append used; its mean is not taken off queries
    cache       ScoreCache [pages,P,G,C], any strides
    pages       table int32 [B,max], length int32 [B]; page_size is the cache's P
    rows        seq, position int32 [R]
    scale       D ** -0.5 of the full width by default

    What a format computes, q' being the reduced query:
    score_fp32              q' as it is; sums in fp32 (fp64 in the reference)
    score_bf16, score_fp16  q' rounded to the format; sums as above
    score_int8              q' quantised as keys are, per (row, head); the sum of code products is
                            an exact integer; then (sum * key scale) * (q scale * scale), each
                            product rounded to fp32: the same bits everywhere
    score_fp8               q' quantised as keys are; code * scale of both sides, sums as above

    Offsets are 64-bit. Returns fp32 [R,H,L]. A NaN in a query stays in its head's row; a key that
    scores NaN is one that no selection takes. Raises ValueError naming the argument.
    """
    dims: dict[str, int] = {}
    require(cache)
    expect.shape(dims, "q", q, "R H D", expect.FLOATS)
    expect.shape(dims, "cache.data", cache.data, "pages P G C", (cache.data.dtype,))
    expect.paged(dims, "q", q, pages, rows)
    if dims["H"] % dims["G"] if dims["G"] else dims["H"]:
        raise ValueError(f"q has {dims['H']} heads; allowed: a multiple of the cache's G = {dims['G']}")
    require_projection(projection, dims["G"], dims["D"], dims["C"])
    expect.same_device("q", q, **{
        "projection.dims": projection.dims, "projection.basis": projection.basis,
        "cache.data": cache.data, "cache.scale": cache.scale,
    })  # fmt: skip
    scale = dims["D"] ** -0.5 if scale is None else float(scale)
    args = (q, projection.dims, projection.basis, cache.data, cache.scale, cache.format, pages.table, pages.length,
            pages.max_length, rows.seq, rows.position, scale)  # fmt: skip
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
