"""unpermute: rows ordered by expert back to their tokens, summed in ascending choice."""

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.ops.unpermute.gradient import backward, setup
from tilesieve.ops.unpermute.reference import known
from tilesieve.types import Groups

# fp64 is for checking gradients.
FLOATS = (*expect.FLOATS, torch.float64)


def _outputs(rows: Tensor, offsets: Tensor, row: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[Spec, ...]:
    return (((row.shape[0], rows.shape[1]), dtype),)


def _sizes(rows: Tensor, offsets: Tensor, row: Tensor, weight: Tensor | None, dtype: torch.dtype) -> dict[str, int]:
    return {
        "tokens": row.shape[0], "picks": row.shape[1], "width": rows.shape[1],
        "rows": int(known(len(rows), offsets, row).sum()), "weighted": int(weight is not None),
        "itemsize": rows.element_size(), "out_itemsize": dtype.itemsize,
        "weight_itemsize": 4 if weight is None else weight.element_size(),
    }  # fmt: skip


def _check(rows: Tensor, offsets: Tensor, row: Tensor, weight: Tensor | None, dtype: torch.dtype) -> None:
    if bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"groups.offsets is {offsets.tolist()}; allowed: ascending")
    # Rows that permute did not keep are legal: picks point past them.
    if bool(((row < -1) | (row >= offsets[-1])).any()):
        raise ValueError(f"groups.row is {int(row.min())} to {int(row.max())}; allowed: -1 to {int(offsets[-1]) - 1}")
    listed = row[row >= 0]
    if len(listed.unique()) != len(listed):
        raise ValueError("groups.row names the same row twice")


OP = define(
    Op(
        name="unpermute",
        schema="Tensor rows, Tensor offsets, Tensor row, Tensor? weight, ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
        gradient=(backward, setup),
    )
)


def unpermute(rows: Tensor, groups: Groups, weight: Tensor | None = None, *, dtype: torch.dtype | None = None,
              out: Tensor | None = None, impl: str | None = None) -> Tensor:  # fmt: skip
    """Sum each token's rows: out[t] = sum over its picks of weight[t,c] * rows[groups.row[t,c]].

    rows    fp32, bf16, fp16 or fp64 [N,D], as permute ordered them. With fewer than N rows (permute's
            keep or drop) picks whose row is not there do not count
    groups  row int32 [T,K], offsets int32 [E+1]. Rows past offsets[-1] and padding are not read
    weight  [T,K], fp32 (fp64 with fp64 rows); None: the plain sum
    dtype   of the result; that of rows by default

    Each product is rounded to fp32, then added in fp32 in ascending choice; the sum is rounded once
    (fp64 of fp64 rows). A pick without a row does not count, whatever its weight; a token without
    rows gives 0. Returns [T,D].

    Of rows that permute made, the plain sum is k * x and weights that sum to one give x back. Bit for
    bit: of bf16 and fp16 rows, as fp32 sums have bits to spare (k * x is rounded once); of fp32 rows
    where no sum rounds: k <= 2, weights 1/2 and 1/2. Else to an fp32 rounding per sum.

    Differentiable in rows and weight; a row that no pick names has gradient 0.

    Raises ValueError naming the argument for a wrong shape, dtype or device, or groups without row.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "rows", rows, "_ D", FLOATS)
    expect.noun("groups", groups, Groups)
    expect.shape(dims, "groups.token", groups.token, "N", expect.INT32)
    expect.shape(dims, "groups.offsets", groups.offsets, "_", expect.INT32)
    if groups.offsets.shape[0] < 1:
        raise ValueError("groups.offsets is empty; allowed: [E + 1]")
    if groups.row is None:
        raise ValueError("groups.row is None; allowed: int32 [T, K], as group_rows gives it")
    expect.shape(dims, "groups.row", groups.row, "T K", expect.INT32)
    if rows.shape[0] > dims["N"]:
        raise ValueError(f"rows has {rows.shape[0]} rows; allowed: at most the {dims['N']} of groups")
    if weight is not None:
        expect.shape(dims, "weight", weight, "T K",
                     (torch.float64,) if rows.dtype == torch.float64 else expect.FP32)  # fmt: skip
    dtype = rows.dtype if dtype is None else dtype
    expect.one_of("dtype", dtype, FLOATS)
    expect.same_device("rows", rows, weight=weight, **{
        "groups.token": groups.token, "groups.offsets": groups.offsets, "groups.row": groups.row,
    })  # fmt: skip
    args = (rows, groups.offsets, groups.row, weight, dtype)
    return call(OP, *args, out=None if out is None else (out,), impl=impl)[0]
