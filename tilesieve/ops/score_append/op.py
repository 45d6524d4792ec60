"""score_append: reduce the new keys, quantise them, write them to their slots."""

from torch import Tensor

from tilesieve.formats.score import SCALED, require, require_projection
from tilesieve.ops import expect
from tilesieve.ops.run import Op, call, define
from tilesieve.types import Projection, ScoreCache


def _sizes(k: Tensor, dims: Tensor | None, basis: Tensor | None, mean: Tensor | None, data: Tensor,
           scale: Tensor | None, format: str, slot: Tensor) -> dict[str, int]:  # fmt: skip
    live = (slot >= 0) & (slot < data.shape[0] * data.shape[1])
    return {
        "rows": int(live.sum()), "listed": len(slot), "heads": k.shape[1], "width": k.shape[2],
        "columns": data.shape[3], "itemsize": k.element_size(), "cache_itemsize": data.element_size(),
        "slot_itemsize": slot.element_size(), "quantised": int(format in SCALED),
        "basis": int(basis is not None), "mean": int(mean is not None),
    }  # fmt: skip


def _check(k: Tensor, dims: Tensor | None, basis: Tensor | None, mean: Tensor | None, data: Tensor,
           scale: Tensor | None, format: str, slot: Tensor) -> None:  # fmt: skip
    slots = data.shape[0] * data.shape[1]
    if bool((slot >= slots).any()):
        raise ValueError(f"slot names {int(slot.max())}; the cache has {slots} slots")
    live = slot[slot >= 0]
    if len(live.unique()) != len(live):
        raise ValueError("slot names the same place twice")
    if dims is not None and bool(((dims < 0) | (dims >= k.shape[2])).any()):
        raise ValueError(f"projection.dims is {dims.tolist()}; allowed: 0 to D - 1 = {k.shape[2] - 1}")
    if not bool(k[slot >= 0].isfinite().all()):
        raise ValueError("k holds a NaN or an infinity in a row that is written")


OP = define(
    Op(
        name="score_append",
        schema="Tensor k, Tensor? dims, Tensor? basis, Tensor? mean, Tensor(a!) data, Tensor(b!)? scale, str format, "
        "Tensor slot",
        outputs=lambda *_: (),
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=(),
        check=_check,
    )
)


def score_append(k: Tensor, projection: Projection, cache: ScoreCache, slot: Tensor, *,
                 impl: str | None = None) -> None:  # fmt: skip
    """Write one reduced key per row and kv head into `cache`, in place.

    k           fp32, bf16 or fp16 [R,G,D]: keys as attention sees them, after norm and rope
    projection  reduces D to C numbers: kept dimensions or a basis, after taking its mean off.
                Sums are in fp64 and rounded once to fp32
    cache       ScoreCache [pages,P,G,C]; the reduced key is rounded or quantised in fp32 by the
                rule of its tag (tilesieve.formats.score). A key that holds a NaN or an infinity
                keeps it in a format without scale and gets scale NaN otherwise
                (`checked()` raises)
    slot        int32 or int64 [R]: page * page_size + offset. A slot < 0 or past the pool skips
                its row; of two rows with one slot the later stays (`checked()` raises)

    Raises ValueError naming the argument.
    """
    dims: dict[str, int] = {}
    require(cache)
    expect.shape(dims, "k", k, "R G D", expect.FLOATS)
    expect.shape(dims, "cache.data", cache.data, "pages P G C", (cache.data.dtype,))
    expect.shape(dims, "slot", slot, "R", expect.INTS)
    require_projection(projection, dims["G"], dims["D"], dims["C"])
    expect.same_device("k", k, slot=slot, **{
        "projection.dims": projection.dims, "projection.basis": projection.basis, "projection.mean": projection.mean,
        "cache.data": cache.data, "cache.scale": cache.scale,
    })  # fmt: skip
    args = (k, projection.dims, projection.basis, projection.mean, cache.data, cache.scale, cache.format, slot)
    call(OP, *args, impl=impl)
