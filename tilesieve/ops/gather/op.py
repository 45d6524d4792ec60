"""gather: the keys and values of selected slots, row after row, in packed buffers."""

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.ops import expect
from tilesieve.ops.gather.runs import contiguous_runs
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import KVCache, Slots


def _outputs(key: Tensor, value: Tensor, slot: Tensor, count: Tensor) -> tuple[Spec, ...]:
    rows, _, picks = slot.shape
    return tuple(((rows, pool.shape[2], picks, pool.shape[3]), pool.dtype) for pool in (key, value))


def _valid(key: Tensor, slot: Tensor, count: Tensor) -> Tensor:
    counted = torch.arange(slot.shape[2], device=slot.device) < count[..., None]
    return counted & (slot >= 0) & (slot < key.shape[0] * key.shape[1])


def _sizes(key: Tensor, value: Tensor, slot: Tensor, count: Tensor) -> dict[str, int]:
    valid = _valid(key, slot, count)
    rows, lists, picks = slot.shape
    heads = key.shape[2]
    touched = torch.zeros(heads, key.shape[0] * key.shape[1], dtype=torch.bool, device=slot.device)
    for a in range(lists):
        touched[slice(None) if lists == 1 else a, slot[:, a][valid[:, a]].long()] = True
    return {
        "rows": rows, "picks": picks, "lists": lists, "heads": heads, "width": key.shape[3],
        "value_width": value.shape[3], "picked": int(valid.sum()), "distinct": int(touched.sum()),
        "itemsize": key.element_size(), "slot_itemsize": slot.element_size(),
        "runs": int(contiguous_runs(Slots(torch.where(valid, slot, -1), count)).sum()),
    }  # fmt: skip


def _check(key: Tensor, value: Tensor, slot: Tensor, count: Tensor) -> None:
    pool, picks = key.shape[0] * key.shape[1], slot.shape[2]
    if bool((count < 0).any()) or bool((count > picks).any()):
        raise ValueError(f"slots.count is {int(count.min())} to {int(count.max())}; allowed: 0 to {picks}")
    counted = torch.arange(picks, device=slot.device) < count[..., None]
    if bool((slot[counted] >= pool).any()):
        raise ValueError(f"slots.slot names {int(slot[counted].max())}; the cache has {pool} slots")


OP = define(
    Op(
        name="gather",
        schema="Tensor key, Tensor value, Tensor slot, Tensor count",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("packed_key", "packed_value"),
        check=_check,
    )
)


def gather(cache: KVCache, slots: Slots, *, out: tuple[Tensor, Tensor] | None = None,
           impl: str | None = None) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Copy the keys and values of each row's slots, in the order listed.

    cache  KVCache, token- or head-major, of G kv heads, widths D and Dv
    slots  slot int32 or int64, count int32: [R,K] and [R], one list for all kv heads, or [R,G,K]
           and [R,G], one per kv head

    Returns key [R,G,K,D] and value [R,G,K,Dv] in the cache's dtype, contiguous, bit for bit. Entries
    past the count, < 0 or past the pool are not read; their rows are zero.

    Raises ValueError naming the argument for a wrong shape, dtype, format or device.
    """
    dims: dict[str, int] = {}
    key, value = token_views(cache)
    expect.shape(dims, "cache.key", key, "pages P G D", (key.dtype,))
    expect.shape(dims, "cache.value", value, "pages P G Dv", (value.dtype,))
    letters = "R K" if slots.slot.dim() == 2 else "R G K"
    expect.shape(dims, "slots.slot", slots.slot, letters, expect.INTS)
    expect.shape(dims, "slots.count", slots.count, letters.removesuffix(" K"), expect.INT32)
    expect.same_device("cache.key", key, **{"cache.value": value, "slots.slot": slots.slot, "slots.count": slots.count})
    slot, count = slots.slot, slots.count
    if slot.dim() == 2:
        slot, count = slot[:, None], count[:, None]
    packed_key, packed_value = call(OP, key, value, slot, count, out=out, impl=impl)
    return packed_key, packed_value
