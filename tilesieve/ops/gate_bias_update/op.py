"""gate_bias_update: balancing without an auxiliary loss, the step of the selection bias."""

import math

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define


def _outputs(bias: Tensor, loads: Tensor, rate: float) -> tuple[Spec, ...]:
    return ((tuple(bias.shape), torch.float32),)


def _sizes(bias: Tensor, loads: Tensor, rate: float) -> dict[str, int]:
    return {"layers": bias.shape[0], "experts": bias.shape[1], "loads_itemsize": loads.element_size()}


def _check(bias: Tensor, loads: Tensor, rate: float) -> None:
    if bool((loads < 0).any()):
        raise ValueError(f"loads holds {int(loads.min())}; allowed: >= 0")


OP = define(
    Op(
        name="gate_bias_update",
        schema="Tensor bias, Tensor loads, float rate",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        check=_check,
    )
)


def gate_bias_update(bias: Tensor, loads: Tensor, *, rate: float = 1e-3, out: Tensor | None = None,
                     impl: str | None = None) -> Tensor:  # fmt: skip
    """bias + rate * sign(mean load - load): an expert with too little work is preferred a little more.

    bias   fp32 [E], or [L,E] for several layers, each with its own mean
    loads  int32 or int64, bias's shape: rows that each expert was given (`gate/balance.py` counts them)
    rate   the step, in units of the score; finite and >= 0

    An expert exactly at the mean (in integers) keeps its bias. Sums in fp64, rounded once to fp32. Returns
    fp32 of bias's shape; out may be bias itself. Raises ValueError naming the argument.
    """
    dims: dict[str, int] = {}
    if not isinstance(bias, Tensor) or bias.dim() not in (1, 2):
        shown = tuple(bias.shape) if isinstance(bias, Tensor) else type(bias).__name__
        raise ValueError(f"bias is {shown}; allowed: fp32 [E] or [L, E]")
    letters = "E" if bias.dim() == 1 else "L E"
    expect.shape(dims, "bias", bias, letters, expect.FP32)
    expect.shape(dims, "loads", loads, letters, expect.INTS)
    expect.same_device("bias", bias, loads=loads)
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not math.isfinite(rate) or rate < 0:
        raise ValueError(f"rate is {rate!r}; allowed: a finite number >= 0")
    if bias.dim() == 2:
        return call(OP, bias, loads, float(rate), out=None if out is None else (out,), impl=impl)[0]
    if out is None:
        return call(OP, bias[None], loads[None], float(rate), impl=impl)[0][0]
    expect.shape({"E": dims["E"]}, "out", out, "E", expect.FP32)
    call(OP, bias[None], loads[None], float(rate), out=(out[None],), impl=impl)
    return out
