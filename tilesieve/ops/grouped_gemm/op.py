"""grouped_gemm: rows ordered by expert, each times the matrix of its expert."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tilesieve.formats.fp8 import BLOCK
from tilesieve.ops import expect
from tilesieve.ops.grouped_gemm.reference import grouped
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Groups

FP8 = (torch.float8_e4m3fn,)
Weights = Tensor | Sequence[Tensor]


def _outputs(x: Tensor, token: Tensor, offsets: Tensor, weight: list[Tensor], x_scale: Tensor | None,
             weight_scale: list[Tensor], dtype: torch.dtype) -> tuple[Spec, ...]:  # fmt: skip
    return (((x.shape[0], weight[0].shape[-2]), dtype),)


def _sizes(x: Tensor, token: Tensor, offsets: Tensor, weight: list[Tensor], x_scale: Tensor | None,
           weight_scale: list[Tensor], dtype: torch.dtype) -> dict[str, int]:  # fmt: skip
    row, count = grouped(token, offsets)
    return {
        "depth": x.shape[1], "width": weight[0].shape[-2], "experts": len(offsets) - 1, "rows": len(row),
        "hit": sum(c > 0 for c in count), "listed": len(token), "itemsize": x.element_size(),
        "out_itemsize": dtype.itemsize, "scaled": int(x_scale is not None),
    }  # fmt: skip


def _check(x: Tensor, token: Tensor, offsets: Tensor, weight: list[Tensor], x_scale: Tensor | None,
           weight_scale: list[Tensor], dtype: torch.dtype) -> None:  # fmt: skip
    expect.ascending("groups.offsets", offsets, len(token))
    if x_scale is not None:
        expect.scales("x_scale", x_scale[grouped(token, offsets)[0]])
    for scale in weight_scale:
        expect.scales("weight_scale", scale)


OP = define(
    Op(
        name="grouped_gemm",
        schema="Tensor x, Tensor token, Tensor offsets, Tensor[] weight, Tensor? x_scale, Tensor[] weight_scale, "
        "ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
    )
)


def grouped_gemm(x: Tensor, groups: Groups, weight: Weights, *, x_scale: Tensor | None = None,
                 weight_scale: Weights | None = None, dtype: torch.dtype | None = None, out: Tensor | None = None,
                 impl: str | None = None) -> Tensor:  # fmt: skip
    """Multiply each row with the matrix of its expert: out[n] = x[n] @ weight[e].T for n in group e.

    x       fp32, bf16, fp16 or e4m3 [N,K], rows ordered by expert (permute makes them)
    groups  token int32 [N], offsets int32 [E+1]. A group may have any number of rows, none too. Rows past
            offsets[-1], and rows whose token is < 0 (padding), are not read and come out 0, also in `out`
    weight  x's dtype, a stack [E,M,K] or a list of E matrices [M,K]; those of empty groups are not read
    x_scale, weight_scale  with e4m3: fp32 [N, ceil(K/128)], one per 128 columns of a row, and
            [E, ceil(M/128), ceil(K/128)], one per 128 x 128 of a matrix, or a list of E of them
    dtype   of the result: fp32, bf16 or fp16; x's by default, of e4m3 bf16

    Sums are fp32, rounded to dtype once. Of e4m3: per 128 of K an fp32 sum of the codes' products,
    times (x_scale * weight_scale), added in fp32 in ascending K. A row's bits do not depend on its
    group's size, its place or its neighbours. Returns [N,M].

    To gather rows in the load, and for gate, up and down in one call, see `experts`.

    Raises ValueError naming the argument for a wrong shape, dtype or device, or scales without e4m3.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "x", x, "N K", (*expect.FLOATS, *FP8))
    expect.noun("groups", groups, Groups)
    expect.shape(dims, "groups.token", groups.token, "N", expect.INT32)
    expect.shape(dims, "groups.offsets", groups.offsets, "_", expect.INT32)
    if groups.offsets.shape[0] < 1:
        raise ValueError("groups.offsets is empty; allowed: [E + 1]")
    dims["E"] = groups.offsets.shape[0] - 1
    matrices = expect.matrices(dims, "weight", weight, "E M K", (x.dtype,), x)
    coded = x.dtype in FP8
    expect.with_codes(coded, x_scale=x_scale, weight_scale=weight_scale)
    scales: list[Tensor] = []
    if x_scale is not None and weight_scale is not None:
        dims["Kb"], dims["Mb"] = -(-dims["K"] // BLOCK), -(-dims["M"] // BLOCK)
        expect.shape(dims, "x_scale", x_scale, "N Kb", expect.FP32)
        scales = expect.matrices(dims, "weight_scale", weight_scale, "E Mb Kb", expect.FP32, x)
    dtype = (torch.bfloat16 if coded else x.dtype) if dtype is None else dtype
    expect.one_of("dtype", dtype, expect.FLOATS)
    expect.same_device("x", x, x_scale=x_scale, **{
        "groups.token": groups.token, "groups.offsets": groups.offsets,
    })  # fmt: skip
    args = (x, groups.token, groups.offsets, matrices, x_scale, scales, dtype)
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
