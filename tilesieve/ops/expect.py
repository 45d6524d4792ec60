"""What op.py files say of their arguments: shapes by letter, dtypes, choices. All raise ValueError."""

from collections.abc import Iterable

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int32, torch.int64)
INT32 = (torch.int32,)
FP32 = (torch.float32,)


def shape(dims: dict[str, int], name: str, tensor: Tensor, letters: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Check that `tensor` has one dimension per letter, the sizes that `dims` already knows, and
    one of `dtypes`; new letters enter `dims`. A digit stands for itself, `_` for anything."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} is {type(tensor).__name__}; allowed: a tensor [{letters.replace(' ', ', ')}]")
    axes = letters.split()
    if tensor.dim() != len(axes):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: [{', '.join(axes)}]")
    for axis, size in zip(axes, tensor.shape, strict=True):
        if axis == "_":
            continue
        known = int(axis) if axis.isdigit() else dims.setdefault(axis, size)
        if known != size:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; allowed: [{', '.join(axes)}] with {axis} = {known}"
            )
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}; allowed: {', '.join(str(d) for d in dtypes)}")


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    options = tuple(allowed)
    if value not in options:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(repr(o) for o in options)}")


def at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; allowed: an integer >= {least}")


def same_device(reference: str, tensor: Tensor, **others: Tensor | None) -> None:
    for name, other in others.items():
        if other is not None and other.device != tensor.device:
            raise ValueError(f"{name} is on {other.device}; {reference} is on {tensor.device}")
