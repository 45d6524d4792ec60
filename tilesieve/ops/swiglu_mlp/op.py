"""swiglu_mlp: gate and up from one read of x, SwiGLU, down. Shared experts and dense layers."""

import math
from typing import Any

import torch
from torch import Tensor

from tilesieve.formats.fp8 import BLOCK, NAMES
from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define

FP8 = (torch.float8_e4m3fn,)


def _outputs(x: Tensor, w13: Tensor, w2: Tensor, *rest: Any) -> tuple[Spec, ...]:
    return (((x.shape[0], w2.shape[0]), rest[-1]),)


def _sizes(x: Tensor, w13: Tensor, w2: Tensor, *rest: Any) -> dict[str, int]:
    return {
        "tokens": x.shape[0], "width": x.shape[1], "inner": w2.shape[1], "itemsize": x.element_size(),
        "out_itemsize": rest[-1].itemsize, "scaled": int(x.dtype in FP8),
    }  # fmt: skip


def _check(x: Tensor, w13: Tensor, w2: Tensor, limit: float | None, *scales: Any) -> None:
    for name, scale in zip(("x_scale", "w13_scale", "w2_scale"), scales[:3], strict=True):
        if scale is not None:
            expect.scales(name, scale)


OP = define(
    Op(
        name="swiglu_mlp",
        schema="Tensor x, Tensor w13, Tensor w2, float? limit, Tensor? x_scale, Tensor? w13_scale, Tensor? w2_scale, "
        "str? quantiser, ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
    )
)


def swiglu_mlp(x: Tensor, w13: Tensor, w2: Tensor, *, limit: float | None = None, x_scale: Tensor | None = None,
               w13_scale: Tensor | None = None, w2_scale: Tensor | None = None, quantiser: str | None = None,
               dtype: torch.dtype | None = None, out: Tensor | None = None,
               impl: str | None = None) -> Tensor:  # fmt: skip
    """silu(x @ gate.T) * (x @ up.T) @ w2.T.

    x       fp32, bf16, fp16 or e4m3 [T,D]
    w13     x's dtype [2I,D]: the I rows of gate, then those of up. Rows that alternate:
            tilesieve.ops.swiglu_mlp.layouts.from_interleaved
    w2      x's dtype [D,I]
    limit   a number > 0 or None: gate is clamped to at most it, up to within +-it, before silu
    x_scale, w13_scale, w2_scale, quantiser  with e4m3: fp32 [T, ceil(D/128)], [ceil(2I/128), ceil(D/128)],
            [ceil(D/128), ceil(I/128)], and which of formats.fp8.NAMES quantises the rows between the
            products, per 128 columns
    dtype   of the result: fp32, bf16 or fp16; x's by default, of e4m3 bf16

    Gate, up and silu(gate) * up are fp32; the last is rounded once, to x's dtype (quantised with e4m3), and
    read by the down product. Sums are fp32, rounded to dtype once; e4m3 is summed as in grouped_gemm.
    Returns [T,D]. A row's bits do not depend on the others.

    Raises ValueError naming the argument for a wrong shape, dtype, limit or device, or scales and
    quantiser without e4m3.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "x", x, "T D", (*expect.FLOATS, *FP8))
    expect.shape(dims, "w13", w13, "2I D", (x.dtype,))
    if dims["2I"] % 2:
        raise ValueError(f"w13 has {dims['2I']} rows; allowed: 2I, gate rows and as many up rows")
    dims["I"] = dims["2I"] // 2
    expect.shape(dims, "w2", w2, "D I", (x.dtype,))
    if limit is not None and not (isinstance(limit, (int, float)) and math.isfinite(limit) and limit > 0):
        raise ValueError(f"limit is {limit!r}; allowed: a finite number > 0, or None")
    coded = x.dtype in FP8
    expect.with_codes(coded, x_scale=x_scale, w13_scale=w13_scale, w2_scale=w2_scale, quantiser=quantiser)
    if x_scale is not None and w13_scale is not None and w2_scale is not None:
        dims |= {"Db": -(-dims["D"] // BLOCK), "2Ib": -(-dims["2I"] // BLOCK), "Ib": -(-dims["I"] // BLOCK)}
        expect.shape(dims, "x_scale", x_scale, "T Db", expect.FP32)
        expect.shape(dims, "w13_scale", w13_scale, "2Ib Db", expect.FP32)
        expect.shape(dims, "w2_scale", w2_scale, "Db Ib", expect.FP32)
        expect.one_of("quantiser", quantiser, NAMES)
    dtype = (torch.bfloat16 if coded else x.dtype) if dtype is None else dtype
    expect.one_of("dtype", dtype, expect.FLOATS)
    expect.same_device("x", x, w13=w13, w2=w2, x_scale=x_scale, w13_scale=w13_scale, w2_scale=w2_scale)
    limit = None if limit is None else float(limit)
    args = (x, w13, w2, limit, x_scale, w13_scale, w2_scale, quantiser, dtype)
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
