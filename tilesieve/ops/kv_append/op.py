"""kv_append: norm and rope the new keys, write keys and values to their slots."""

from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.ops import expect
from tilesieve.ops.run import Op, call, define
from tilesieve.types import KVCache

ROPES = ("none", "half", "interleaved")


def _sizes(k: Tensor, v: Tensor, key: Tensor, value: Tensor, slot: Tensor, norm: Tensor | None, eps: float,
           cos: Tensor | None, sin: Tensor | None, rope: str) -> dict[str, int]:  # fmt: skip
    live = (slot >= 0) & (slot < key.shape[0] * key.shape[1])
    return {
        "rows": int(live.sum()), "listed": len(slot), "heads": k.shape[1], "width": k.shape[2],
        "value_width": v.shape[2], "itemsize": k.element_size(), "cache_itemsize": key.element_size(),
        "slot_itemsize": slot.element_size(), "norm": int(norm is not None),
        "rotary": 0 if cos is None else 2 * cos.shape[1],
    }  # fmt: skip


def _check(k: Tensor, v: Tensor, key: Tensor, value: Tensor, slot: Tensor, *rest: object) -> None:
    if bool((slot >= key.shape[0] * key.shape[1]).any()):
        raise ValueError(f"slot names {int(slot.max())}; the cache has {key.shape[0] * key.shape[1]} slots")
    live = slot[slot >= 0]
    if len(live.unique()) != len(live):
        raise ValueError("slot names the same place twice")


OP = define(
    Op(
        name="kv_append",
        schema="Tensor k, Tensor v, Tensor(a!) key, Tensor(b!) value, Tensor slot, Tensor? norm, float eps, "
        "Tensor? cos, Tensor? sin, str rope",
        outputs=lambda *_: (),
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=(),
        check=_check,
    )
)


def kv_append(k: Tensor, v: Tensor, cache: KVCache, slot: Tensor, *, norm: Tensor | None = None, eps: float = 1e-6,
              cos: Tensor | None = None, sin: Tensor | None = None, rope: str = "none",
              impl: str | None = None) -> None:  # fmt: skip
    """Write one key and value per row and kv head into `cache`, in place.

    k, v   fp32, bf16 or fp16 [R,G,D] and [R,G,Dv]
    cache  KVCache, token- or head-major; the numbers are rounded once, to its dtype
    slot   int32 or int64 [R]: page * page_size + offset. A slot < 0 or past the pool skips its
           row; of two rows with one slot the later stays (`checked()` raises)
    norm   fp32 [D]: RMSNorm of each key head with `eps` (QK-norm), before the rotation, or None
    cos, sin  fp32 [R,C] with 2C <= D: rotate the first 2C dimensions; needs `rope`
    rope   "half": pairs (i, i + C); "interleaved": pairs (2i, 2i + 1); "none"

    Values are written as they are. Raises ValueError naming the argument.
    """
    dims: dict[str, int] = {}
    key, value = token_views(cache)
    expect.shape(dims, "k", k, "R G D", expect.FLOATS)
    expect.shape(dims, "v", v, "R G Dv", (k.dtype,))
    expect.shape(dims, "cache.key", key, "pages P G D", (key.dtype,))
    expect.shape(dims, "cache.value", value, "pages P G Dv", (value.dtype,))
    expect.shape(dims, "slot", slot, "R", expect.INTS)
    expect.one_of("rope", rope, ROPES)
    if norm is not None:
        expect.shape(dims, "norm", norm, "D", expect.FP32)
    if (rope == "none") != (cos is None) or (cos is None) != (sin is None):
        given = [name for name, t in (("cos", cos), ("sin", sin)) if t is not None]
        raise ValueError(f"rope is {rope!r} with {' and '.join(given) or 'neither cos nor sin'}; "
                         "allowed: a rope with both, or 'none' with neither")  # fmt: skip
    if cos is not None and sin is not None:
        expect.shape(dims, "cos", cos, "R C", expect.FP32)
        expect.shape(dims, "sin", sin, "R C", expect.FP32)
        if 2 * dims["C"] > dims["D"]:
            raise ValueError(f"cos has {dims['C']} columns; allowed: at most D / 2 = {dims['D'] // 2}")
    expect.same_device("k", k, v=v, slot=slot, norm=norm, cos=cos, sin=sin, **{"cache.key": key, "cache.value": value})
    call(OP, k, v, key, value, slot, norm, eps, cos, sin, rope, impl=impl)
