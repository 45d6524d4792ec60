"""What the tests over every operator share: run a case, flatten, poison, stride, compare."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilesieve.ops import catalogue, run
from tilesieve.types import Case

GARBAGE = -1234567


def poison_(tensor: Tensor) -> Tensor:
    """NaN where the dtype has one, an absurd number elsewhere."""
    if tensor.dtype.is_floating_point:
        return tensor.fill_(torch.nan)
    return tensor.fill_(GARBAGE if tensor.dtype.itemsize >= 4 else 1)


def build(case: Case, seed: int = 0) -> dict[str, Any]:
    return case.build(torch.Generator().manual_seed(seed))


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: map_tensors(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {name: map_tensors(item, change) for name, item in value.items()}
    return value


def tensors(value: Any) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    map_tensors(value, lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return tuple(found)


def spread(tensor: Tensor) -> Tensor:
    """The same numbers with a leading stride twice as long, poison in between."""
    if tensor.dim() == 0:
        return tensor
    # The hole between rows must not be seen, so it holds poison.
    wide = poison_(tensor.new_empty(2 * tensor.shape[0], *tensor.shape[1:]))
    wide[::2] = tensor
    return wide[::2]


def rows_of(name: str, inputs: dict[str, Any]) -> int:
    """How many rows the result has: the leading dimension of the argument ROWS names ("groups.row": of a
    noun's field), of a noun that of its first tensor."""
    argument, _, field = catalogue.cases(name).ROWS.partition(".")
    value = getattr(inputs[argument], field) if field else inputs[argument]
    return tensors(value)[0].shape[0]


def execute(name: str, inputs: dict[str, Any], **more: Any) -> tuple[Tensor, ...]:
    """The results as a flat tuple; of an op that mutates, the mutated tensors of a copy."""
    mutated = getattr(catalogue.cases(name), "MUTATES", None)
    if mutated is None:
        return tensors(catalogue.operator(name)(**inputs, **more))
    inputs = {**inputs, mutated: clone_strided(inputs[mutated])}
    catalogue.operator(name)(**inputs, **more)
    return tensors(inputs[mutated])


def clone_strided(value: Any) -> Any:
    """A deep copy that keeps strides (Tensor.clone packs a view with holes)."""
    return copy.deepcopy(value)


def flat_call(name: str, inputs: dict[str, Any], impl: str | None = None) -> run.Call:
    """The observed call, with its flat arguments."""
    calls: list[run.Call] = []
    with run.observe(calls.append):
        execute(name, inputs, impl=impl)
    mine = [call for call in calls if call.op.name == name]
    assert len(mine) == 1, f"{name} made {len(mine)} calls of itself"
    return mine[0]


def same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.is_floating_point:
        # -0 and +0 differ here, and a NaN equals itself.
        view = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[a.dtype.itemsize]
        return torch.equal(a.contiguous().view(view), b.contiguous().view(view))
    return torch.equal(a, b)


def close(got: Tensor, want: Tensor, error: float) -> str:
    """'' when got is within `error` of want, relative to want's largest finite magnitude."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
    if not want.dtype.is_floating_point or error == 0.0:
        return "" if same_bits(got, want) else f"bits differ in {int((got != want).sum())} places"
    got, want = got.double(), want.double()
    finite = want.isfinite()
    if not torch.equal(got[~finite].nan_to_num(7.0), want[~finite].nan_to_num(7.0)) or not bool(
        got[finite].isfinite().all()
    ):
        return "infinities or NaN differ"
    if not finite.any():
        return ""
    scale = float(want[finite].abs().max()) or 1.0
    worst = float((got[finite] - want[finite]).abs().max())
    return "" if worst <= error * scale else f"largest difference {worst:.3g} of {scale:.3g}, allowed {error:.3g}"
