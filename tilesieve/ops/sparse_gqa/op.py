"""sparse_gqa: attention of single query rows over selected slots of a paged key-value cache."""

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.ops.sparse_gqa.counts import counts
from tilesieve.types import KVCache, Partial, Slots


def _outputs(q: Tensor, key: Tensor, value: Tensor, *rest: object) -> tuple[Spec, ...]:
    rows, heads, _ = q.shape
    return ((rows, heads, value.shape[3]), torch.float32), ((rows, heads), torch.float32)


def _sizes(q: Tensor, key: Tensor, value: Tensor, slot: Tensor, count: Tensor, scale: float,
           sink: Tensor | None) -> dict[str, int]:  # fmt: skip
    return {
        "rows": q.shape[0], "heads": q.shape[1], "kv_heads": key.shape[2], "width": q.shape[2],
        "value_width": value.shape[3], "picks": slot.shape[-1], "lists": slot.shape[1],
        "itemsize": key.element_size(), "q_itemsize": q.element_size(), "slot_itemsize": slot.element_size(),
        "sink": int(sink is not None),
        **counts(slot, count, q.shape[1], key.shape[2], key.shape[0] * key.shape[1]),
    }  # fmt: skip


def _check(q: Tensor, key: Tensor, value: Tensor, slot: Tensor, count: Tensor, *rest: object) -> None:
    pool, picks = key.shape[0] * key.shape[1], slot.shape[-1]
    if bool((count < 0).any()) or bool((count > picks).any()):
        raise ValueError(f"slots.count is {int(count.min())} to {int(count.max())}; allowed: 0 to {picks}")
    counted = (torch.arange(picks, device=slot.device) < count[..., None]) & (slot >= 0)
    if bool((slot[counted] >= pool).any()):
        raise ValueError(f"slots.slot names {int(slot[counted].max())}; the cache has {pool} slots")
    # Each skipped entry becomes a number of its own, so that what is left equal is a slot twice.
    apart = -1 - torch.arange(picks, device=slot.device)
    listed = torch.where(counted, slot.long(), apart).sort(-1).values
    if bool((listed[..., 1:] == listed[..., :-1]).any()):
        raise ValueError("slots.slot names a place twice in one list; it would count twice")


OP = define(
    Op(
        name="sparse_gqa",
        schema="Tensor q, Tensor key, Tensor value, Tensor slot, Tensor count, float scale, Tensor? sink",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("out", "lse"),
        check=_check,
    )
)


def sparse_gqa(q: Tensor, cache: KVCache, slots: Slots, *, scale: float | None = None, sink: Tensor | None = None,
               out: Partial | None = None, impl: str | None = None) -> Partial:  # fmt: skip
    """Attention of each row over the slots it lists. Work and reads grow with K, not with the context.

    q      fp32, bf16 or fp16 [R,H,D]; H = G * g, and head h reads kv head h // g
    cache  KVCache, token- or head-major, widths D and Dv
    slots  slot int32 or int64, count int32: [R,K] and [R], one list for all heads; [R,G,K] and
           [R,G], one per kv head; or [R,H,K] and [R,H], one per query head. Entries past the count,
           < 0 or past the pool are skipped where they stand. A slot listed twice counts twice
           (`checked()` raises)
    scale  of the scores; D**-0.5 by default
    sink   fp32 [H]: a logit that is added to the denominator of out, not to lse

    Returns Partial(out fp32 [R,H,Dv], lse fp32 [R,H], natural log, sink excluded). A row without a
    valid slot gives out 0 and lse -inf. Slots not listed may hold NaN; a NaN that is listed shows.

    Raises ValueError naming the argument for a wrong shape, dtype, format or device.
    """
    dims: dict[str, int] = {}
    key, value = token_views(cache)
    expect.heads(dims, q, key, value)
    per_kv_head = slots.slot.dim() == 3 and slots.slot.shape[1] == dims["G"]
    letters = "R K" if slots.slot.dim() == 2 else "R G K" if per_kv_head else "R H K"
    expect.shape(dims, "slots.slot", slots.slot, letters, expect.INTS)
    expect.shape(dims, "slots.count", slots.count, letters.removesuffix(" K"), expect.INT32)
    if sink is not None:
        expect.shape(dims, "sink", sink, "H", expect.FP32)
    expect.same_device("q", q, sink=sink, **{"slots.slot": slots.slot, "slots.count": slots.count})
    scale = max(1, dims["D"]) ** -0.5 if scale is None else scale
    slot, count = slots.slot, slots.count
    if slot.dim() == 2:
        slot, count = slot[:, None], count[:, None]
    args = (q, key, value, slot, count, scale, sink)
    return Partial(*call(OP, *args, out=None if out is None else (out.out, out.lse), impl=impl))
