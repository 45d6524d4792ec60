"""combine: expert rows back to their tokens, weighted and summed in a stated order."""

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Groups

ORDERS = ("choice", "expert")


def _outputs(y: Tensor, token: Tensor, choice: Tensor, offsets: Tensor, weight: Tensor, shared: Tensor | None,
             order: str, dtype: torch.dtype) -> tuple[Spec, ...]:  # fmt: skip
    return (((weight.shape[0], y.shape[1]), dtype),)


def _sizes(y: Tensor, token: Tensor, choice: Tensor, offsets: Tensor, weight: Tensor, shared: Tensor | None,
           order: str, dtype: torch.dtype) -> dict[str, int]:  # fmt: skip
    live = (token >= 0) & (torch.arange(len(token), device=token.device) < offsets[-1])
    return {
        "tokens": weight.shape[0], "picks": weight.shape[1], "width": y.shape[1], "experts": len(offsets) - 1,
        "rows": int(live.sum()), "listed": len(token), "itemsize": y.element_size(),
        "out_itemsize": dtype.itemsize, "shared": int(shared is not None),
    }  # fmt: skip


def _check(y: Tensor, token: Tensor, choice: Tensor, offsets: Tensor, weight: Tensor, shared: Tensor | None,
           order: str, dtype: torch.dtype) -> None:  # fmt: skip
    tokens, picks = weight.shape
    if bool((offsets[1:] < offsets[:-1]).any()) or int(offsets[-1]) > len(token):
        raise ValueError(f"groups.offsets is {offsets.tolist()}; allowed: ascending, at most {len(token)}")
    live = token[: int(offsets[-1])]
    mine = choice[: int(offsets[-1])][live >= 0]
    if bool((live >= tokens).any()) or bool(((mine < 0) | (mine >= picks)).any()):
        raise ValueError(f"groups.token or groups.choice names a pick outside weight [{tokens}, {picks}]")
    pair = (live.long() * picks + choice[: int(offsets[-1])])[live >= 0]
    if len(pair.unique()) != len(pair):
        raise ValueError("groups names the same (token, choice) twice")


OP = define(
    Op(
        name="combine",
        schema="Tensor y, Tensor token, Tensor choice, Tensor offsets, Tensor weight, Tensor? shared, "
        "str order, ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
    )
)


def combine(y: Tensor, groups: Groups, weight: Tensor, *, shared: Tensor | None = None, order: str = "choice",
            dtype: torch.dtype | None = None, out: Tensor | None = None,
            impl: str | None = None) -> Tensor:  # fmt: skip
    """Sum each token's expert rows: out[t] = sum over its picks of weight[t,c] * y[row of (t,c)] + shared[t].

    y       fp32, bf16 or fp16 [N,D], rows ordered by expert as `groups` says
    groups  token, choice int32 [N]; offsets int32 [E+1]. Rows past offsets[-1], and rows whose
            token or choice is outside weight, are not read
    weight  fp32 [T,K] router weights; a pick without a row does not count, whatever its weight
    shared  y's dtype [T,D], the shared expert's rows, added last
    order   "choice": picks are added in ascending choice, which is descending score;
            "expert": in ascending expert id
    dtype   of the result; y's by default

    Each product is rounded to fp32, then added in fp32; the sum is rounded once. A token without
    rows gives 0. Returns [T,D]. If a (token, choice) is listed twice the later row counts
    (`checked()` raises).

    Raises ValueError naming the argument for a wrong shape, dtype, order or device.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "y", y, "N D", expect.FLOATS)
    expect.shape(dims, "groups.token", groups.token, "N", expect.INT32)
    expect.shape(dims, "groups.choice", groups.choice, "N", expect.INT32)
    expect.shape(dims, "groups.offsets", groups.offsets, "_", expect.INT32)
    if groups.offsets.shape[0] < 1:
        raise ValueError("groups.offsets is empty; allowed: [E + 1]")
    expect.shape(dims, "weight", weight, "T K", expect.FP32)
    if shared is not None:
        expect.shape(dims, "shared", shared, "T D", (y.dtype,))
    expect.one_of("order", order, ORDERS)
    dtype = y.dtype if dtype is None else dtype
    expect.one_of("dtype", dtype, expect.FLOATS)
    expect.same_device("y", y, weight=weight, shared=shared, **{
        "groups.token": groups.token, "groups.choice": groups.choice, "groups.offsets": groups.offsets,
    })  # fmt: skip
    args = (y, groups.token, groups.choice, groups.offsets, weight, shared, order, dtype)
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
