"""experts: the MLP of each row's own expert, with rows gathered in the load and the router weight where asked."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilesieve.formats.fp8 import BLOCK, NAMES
from tilesieve.ops import expect
from tilesieve.ops.experts.reference import live
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Groups

FP8 = (torch.float8_e4m3fn,)
WEIGHT_AT = ("combine", "down", "before_down")
Weights = Tensor | Sequence[Tensor]


class _Flat(NamedTuple):
    """The arguments of the torch op, in its schema's order."""

    x: Tensor
    token: Tensor
    choice: Tensor
    offsets: Tensor
    w13: list[Tensor]
    w2: list[Tensor]
    weight: Tensor | None
    weight_at: str
    limit: float | None
    x_scale: Tensor | None
    w13_scale: list[Tensor]
    w2_scale: list[Tensor]
    quantiser: str | None
    dtype: torch.dtype

    def live(self) -> tuple[Tensor, list[int]]:
        return live(self.token, self.choice, self.offsets, len(self.x), self.weight)


def _outputs(*args: Any) -> tuple[Spec, ...]:
    flat = _Flat(*args)
    return (((len(flat.token), flat.w2[0].shape[-2]), flat.dtype),)


def _sizes(*args: Any) -> dict[str, int]:
    flat = _Flat(*args)
    row, count = flat.live()
    width, inner = flat.w2[0].shape[-2:]
    return {
        "tokens": len(flat.token[row].unique()), "width": width, "inner": inner, "experts": len(flat.offsets) - 1,
        "rows": len(row), "hit": sum(c > 0 for c in count), "listed": len(flat.token),
        "itemsize": flat.x.element_size(), "out_itemsize": flat.dtype.itemsize,
        "scaled": int(flat.x_scale is not None),
        "weighted": {"combine": 0, "down": width, "before_down": inner}[flat.weight_at],
    }  # fmt: skip


def _check(*args: Any) -> None:
    flat = _Flat(*args)
    expect.ascending("groups.offsets", flat.offsets, len(flat.token))
    end = int(flat.offsets[-1])
    token, choice = flat.token[:end], flat.choice[:end]
    if bool((token >= len(flat.x)).any()):
        raise ValueError(f"groups.token names {int(token.max())}; x has {len(flat.x)} tokens")
    if flat.weight is not None:
        picks, mine = flat.weight.shape[1], choice[token >= 0]
        if bool(((mine < 0) | (mine >= picks)).any()):
            raise ValueError(f"groups.choice is {int(mine.min())} to {int(mine.max())}; allowed: 0 to {picks - 1}")
    if flat.x_scale is not None:
        expect.scales("x_scale", flat.x_scale[flat.token[flat.live()[0]].long()])
        for name, scales in (("w13_scale", flat.w13_scale), ("w2_scale", flat.w2_scale)):
            for scale in scales:
                expect.scales(name, scale)


OP = define(
    Op(
        name="experts",
        schema="Tensor x, Tensor token, Tensor choice, Tensor offsets, Tensor[] w13, Tensor[] w2, Tensor? weight, "
        "str weight_at, float? limit, Tensor? x_scale, Tensor[] w13_scale, Tensor[] w2_scale, str? quantiser, "
        "ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
    )
)


def experts(x: Tensor, groups: Groups, w13: Weights, w2: Weights, weight: Tensor | None = None, *,
            weight_at: str = "combine", limit: float | None = None, x_scale: Tensor | None = None,
            w13_scale: Weights | None = None, w2_scale: Weights | None = None, quantiser: str | None = None,
            dtype: torch.dtype | None = None, out: Tensor | None = None,
            impl: str | None = None) -> Tensor:  # fmt: skip
    """The SwiGLU MLP of its expert for each row: out[n] = (silu(gate) * up) @ w2[e].T of x[groups.token[n]].

    x       fp32, bf16, fp16 or e4m3 [T,D], by token: rows are gathered in the load
    groups  token, choice int32 [N], offsets int32 [E+1]. Rows past offsets[-1], and rows whose token is not in
            [0, T) (or choice not in [0, K), with a weight), are not read and come out 0, also in `out`
    w13     x's dtype, a stack [E,2I,D] or a list of E: the I rows of gate, then those of up. Rows that
            alternate: tilesieve.ops.swiglu_mlp.layouts.from_interleaved
    w2      x's dtype, a stack [E,D,I] or a list of E. Matrices of an expert without rows are not read
    weight  fp32 [T,K] router weights; None with weight_at "combine", needed otherwise
    weight_at  where they are multiplied: "combine": not here, `combine` does it; "down": into the fp32 sums of
            the down product, before their rounding; "before_down": into silu(gate) * up in fp32, before its
            rounding or quantising. After the last two, `unpermute` without weights sums the rows
    limit   a number > 0 or None: gate is clamped to at most it, up to within +-it, before silu
    x_scale, w13_scale, w2_scale, quantiser  with e4m3: fp32 [T, ceil(D/128)], [E, ceil(2I/128), ceil(D/128)],
            [E, ceil(D/128), ceil(I/128)] (or lists of E), and which of formats.fp8.NAMES quantises the
            rows between the products, per 128 columns
    dtype   of the result: fp32, bf16 or fp16; x's by default, of e4m3 bf16

    Gate, up and silu(gate) * up are fp32; the last is rounded once, to x's dtype (quantised with e4m3), and
    read by the down product. Sums are fp32, rounded to dtype once; e4m3 is summed as in grouped_gemm.
    The result is that of permute, grouped_gemm to fp32, SwiGLU and grouped_gemm, bit for bit. A row's bits do
    not depend on the others. Returns [N,D], rows ordered as groups says.

    Raises ValueError naming the argument for a wrong shape, dtype, choice, limit or device, a weight that
    would not be used, and scales or a quantiser without e4m3.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "x", x, "T D", (*expect.FLOATS, *FP8))
    expect.noun("groups", groups, Groups)
    expect.shape(dims, "groups.token", groups.token, "N", expect.INT32)
    expect.shape(dims, "groups.choice", groups.choice, "N", expect.INT32)
    expect.shape(dims, "groups.offsets", groups.offsets, "_", expect.INT32)
    if groups.offsets.shape[0] < 1:
        raise ValueError("groups.offsets is empty; allowed: [E + 1]")
    dims["E"] = groups.offsets.shape[0] - 1
    w13 = expect.matrices(dims, "w13", w13, "E 2I D", (x.dtype,), x)
    if dims["2I"] % 2:
        raise ValueError(f"w13 has {dims['2I']} rows an expert; allowed: 2I, gate rows and as many up rows")
    dims["I"] = dims["2I"] // 2
    w2 = expect.matrices(dims, "w2", w2, "E D I", (x.dtype,), x)
    expect.one_of("weight_at", weight_at, WEIGHT_AT)
    if (weight is None) != (weight_at == "combine"):
        raise ValueError(f"weight is {'None' if weight is None else 'given'} with weight_at = {weight_at!r}; allowed: "
                         "None with 'combine', which does not multiply here, else a tensor [T, K]")  # fmt: skip
    if weight is not None:
        expect.shape(dims, "weight", weight, "T K", expect.FP32)
    if limit is not None and not (isinstance(limit, (int, float)) and math.isfinite(limit) and limit > 0):
        raise ValueError(f"limit is {limit!r}; allowed: a finite number > 0, or None")
    coded = x.dtype in FP8
    expect.with_codes(coded, x_scale=x_scale, w13_scale=w13_scale, w2_scale=w2_scale, quantiser=quantiser)
    scales13: list[Tensor] = []
    scales2: list[Tensor] = []
    if x_scale is not None and w13_scale is not None and w2_scale is not None:
        dims |= {"Db": -(-dims["D"] // BLOCK), "2Ib": -(-dims["2I"] // BLOCK), "Ib": -(-dims["I"] // BLOCK)}
        expect.shape(dims, "x_scale", x_scale, "T Db", expect.FP32)
        scales13 = expect.matrices(dims, "w13_scale", w13_scale, "E 2Ib Db", expect.FP32, x)
        scales2 = expect.matrices(dims, "w2_scale", w2_scale, "E Db Ib", expect.FP32, x)
        expect.one_of("quantiser", quantiser, NAMES)
    dtype = (torch.bfloat16 if coded else x.dtype) if dtype is None else dtype
    expect.one_of("dtype", dtype, expect.FLOATS)
    expect.same_device("x", x, weight=weight, x_scale=x_scale, **{
        "groups.token": groups.token, "groups.choice": groups.choice, "groups.offsets": groups.offsets,
    })  # fmt: skip
    limit = None if limit is None else float(limit)
    args = _Flat(x, groups.token, groups.choice, groups.offsets, w13, w2, weight, weight_at, limit, x_scale,
                 scales13, scales2, quantiser, dtype)  # fmt: skip
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
