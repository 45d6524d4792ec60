"""merge: partial attentions over disjoint keys into the attention over all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Partial


def _outputs(outs: list[Tensor], lses: list[Tensor], lengths: Tensor | None, sink: Tensor | None,
             dtype: torch.dtype) -> tuple[Spec, ...]:  # fmt: skip
    return ((tuple(outs[0].shape), dtype), (tuple(lses[0].shape), torch.float32))


def _sizes(outs: list[Tensor], lses: list[Tensor], lengths: Tensor | None, sink: Tensor | None,
           dtype: torch.dtype) -> dict[str, int]:  # fmt: skip
    rows, heads, width = outs[0].shape
    return {
        "parts": len(outs), "rows": rows, "heads": heads, "value_width": width,
        "live": len(outs) * rows if lengths is None else int((lengths > 0).sum()),
        "itemsize": outs[0].element_size(), "out_itemsize": dtype.itemsize,
        "lengths": int(lengths is not None), "sink": int(sink is not None),
    }  # fmt: skip


def _check(outs: list[Tensor], lses: list[Tensor], lengths: Tensor | None, *rest: object) -> None:
    for n, lse in enumerate(lses):
        read = lse if lengths is None else lse[lengths[n] > 0]
        if bool((read == torch.inf).any()):
            raise ValueError(f"parts[{n}].lse holds +inf; a part that saw nothing says -inf (see merge/lse.py)")


OP = define(
    Op(
        name="merge",
        schema="Tensor[] outs, Tensor[] lses, Tensor? lengths, Tensor? sink, ScalarType dtype",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("out", "lse"),
        check=_check,
    )
)


def merge(parts: Sequence[Partial], *, lengths: Tensor | None = None, sink: Tensor | None = None,
          dtype: torch.dtype | None = None, out: Partial | None = None,
          impl: str | None = None) -> Partial:  # fmt: skip
    """One attention out of its parts: lse = log sum exp(lse_n), out = sum exp(lse_n - lse) out_n.

    parts    Partial each, in the order they are added: out fp32, bf16 or fp16 [R,H,Dv], lse fp32 [R,H],
             natural log, sink excluded. A part with lse -inf adds nothing, whatever its out holds
    lengths  int32 [N,R]: keys behind part n of row r; where it is < 1 that part is not read. None: all are
    sink     fp32 [H]: a logit added to the denominator only; the result's lse excludes it
    dtype    of the result's out; by default that of `out` where it is given, else fp32

    A row without any part gives out 0 and lse -inf (a library that writes +inf there: merge/lse.py
    converts; `checked()` raises on +inf). Sums in fp32 (reference fp64), rounded once.
    Returns Partial(out [R,H,Dv], lse fp32 [R,H]). Raises ValueError naming the argument.
    """
    parts = tuple(parts)
    if not parts:
        raise ValueError("parts is empty; allowed: one Partial or more")
    dims: dict[str, int] = {}
    for n, part in enumerate(parts):
        expect.shape(dims, f"parts[{n}].out", part.out, "R H Dv", expect.FLOATS if n == 0 else (parts[0].out.dtype,))
        expect.shape(dims, f"parts[{n}].lse", part.lse, "R H", expect.FP32)
        expect.same_device("parts[0].out", parts[0].out, **{f"parts[{n}].out": part.out, f"parts[{n}].lse": part.lse})
    if lengths is not None:
        dims["N"] = len(parts)
        expect.shape(dims, "lengths", lengths, "N R", expect.INT32)
    if sink is not None:
        expect.shape(dims, "sink", sink, "H", expect.FP32)
    expect.same_device("parts[0].out", parts[0].out, lengths=lengths, sink=sink)
    if dtype is None:
        dtype = torch.float32 if out is None else out.out.dtype
    expect.one_of("dtype", dtype, expect.FLOATS)
    args = ([part.out for part in parts], [part.lse for part in parts], lengths, sink, dtype)
    return Partial(*call(OP, *args, out=None if out is None else (out.out, out.lse), impl=impl))
