"""The only way an operator runs: registration, choice of implementation, observers, checks.

An operator is an `Op` record. `define` makes of it two torch ops, tilesieve::NAME (returns fresh
outputs) and tilesieve::NAME.out (writes the caller's), with the fakes that torch.compile needs;
an op that only mutates its arguments has one form. `call` is what op.py uses.

An implementation takes the flat arguments. "reference" returns its outputs; every other one
writes them into `out`, a tuple. In an op that mutates its arguments each one mutates them.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd, register_fake

from tilesieve.ops import catalogue

Spec = tuple[tuple[int, ...], torch.dtype]

_LIBRARY = Library("tilesieve", "DEF")


@dataclass(frozen=True)
class Op:
    """name; schema: flat arguments as torch.library writes them, without parentheses.

    outputs(*args) gives (shape, dtype) of each output; () for an op that mutates instead.
    sizes(*args) gives cost.py's arguments; it may read counts off the tensors, so only observers
    call it. check(*args) looks into tensor contents under `checked()`; it raises ValueError.
    limits maps an implementation to a function of the flat arguments that returns why it cannot
    run them, or None. gradient is the backward and the setup_context of torch.library.register_autograd;
    an op without one refuses inputs that require grad.
    """

    name: str
    schema: str
    outputs: Callable[..., tuple[Spec, ...]]
    sizes: Callable[..., dict[str, int]]
    implementations: tuple[str, ...] = ("reference",)
    returns: tuple[str, ...] = ("out",)
    check: Callable[..., None] | None = None
    limits: tuple[tuple[str, Callable[..., str | None]], ...] = ()
    gradient: tuple[Callable[..., Any], Callable[..., None]] | None = None


@dataclass(frozen=True)
class Call:
    """What an observer is told after a call. seconds is host time: on a GPU, of the launch only."""

    op: Op
    impl: str
    args: tuple[Any, ...]
    seconds: float

    def sizes(self) -> dict[str, int]:
        return self.op.sizes(*self.args)


# The package's one mutable list: observers of the calls, innermost last.
_OBSERVERS: list[Callable[[Call], None]] = []
_CHECKED: ContextVar[bool] = ContextVar("tilesieve_checked", default=False)


@contextmanager
def observe(observer: Callable[[Call], None]) -> Iterator[None]:
    """Tell `observer` of every operator call inside the block, also inside compiled graphs."""
    _OBSERVERS.append(observer)
    try:
        yield
    finally:
        # By identity from the end: equal observers may be nested.
        for index in range(len(_OBSERVERS) - 1, -1, -1):
            if _OBSERVERS[index] is observer:
                del _OBSERVERS[index]
                break


@contextmanager
def checked() -> Iterator[None]:
    """Also check device contents (index ranges, scales, duplicates) of every call; syncs."""
    token = _CHECKED.set(True)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def empty(spec: Spec, device: torch.device) -> Tensor:
    """Every output is born here, so that tests can poison it."""
    return torch.empty(spec[0], dtype=spec[1], device=device)


@cache
def _load(name: str, impl: str) -> Callable[..., Any]:
    question = {"tilelang": "kernel"}.get(impl, impl)
    return getattr(import_module(f"tilesieve.ops.{name}.{question}"), name)


def supports(op: Op, impl: str, *args: Any) -> str | None:
    """Why `impl` cannot run these flat arguments; None when it can."""
    if impl not in op.implementations:
        return f"{op.name} has no {impl!r} implementation; it has {', '.join(op.implementations)}"
    device = _device(args)
    if impl == "tilelang" and device.type != "cuda":
        return f"'tilelang' needs CUDA tensors; these are on {device}"
    limit = dict(op.limits).get(impl)
    return limit(*args) if limit else None


def choose(op: Op, impl: str | None, *args: Any) -> str:
    """The implementation that will run: the named one, or the best that supports the case."""
    if impl is not None:
        reason = supports(op, impl, *args)
        if reason:
            raise ValueError(f"impl is {impl!r}: {reason}")
        return impl
    on_gpu = _device(args).type == "cuda"
    for candidate in ("tilelang", "cpu", "reference"):
        if supports(op, candidate, *args) is None:
            if on_gpu and candidate != "tilelang":
                if torch.cuda.is_current_stream_capturing():
                    raise RuntimeError(f"{op.name}: no kernel supports this case, and a fallback may not "
                                       "run under CUDA graph capture; name impl to see why")  # fmt: skip
                _warn_fallback(op.name, candidate)
            return candidate
    raise ValueError(f"{op.name}: no implementation supports this case")


@cache
def _warn_fallback(name: str, impl: str) -> None:
    warnings.warn(f"tilesieve: {name} runs its {impl!r} form on the GPU; no kernel supports this case",
                  stacklevel=5)  # fmt: skip


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    """The tensors among flat arguments, also those inside lists."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            yield from _tensors(tuple(arg))


def _device(args: tuple[Any, ...]) -> torch.device:
    return next(_tensors(args)).device


def _execute(op: Op, args: tuple[Any, ...], impl: str | None, out: tuple[Tensor, ...]) -> None:
    chosen = choose(op, impl, *args)
    if op.check is not None and _CHECKED.get():
        op.check(*args)
    function = _load(op.name, chosen)
    start = time.perf_counter()
    if not op.returns:
        function(*args)
    elif chosen == "reference":
        result = function(*args)
        for target, value in zip(out, (result,) if isinstance(result, Tensor) else result, strict=True):
            target.copy_(value)
    else:
        function(*args, out=out)
    seconds = time.perf_counter() - start
    for observer in _OBSERVERS:
        observer(Call(op, chosen, args, seconds))


def define(op: Op) -> Op:
    """Register the torch ops behind `op`; called once, when its op.py is imported."""
    names = op.returns
    fresh = "Tensor" if len(names) == 1 else f"({', '.join('Tensor' for _ in names)})"
    separator = "" if "*," in op.schema else ", *"
    head = f"{op.name}({op.schema}{separator}, str? impl=None)"
    if not names:
        _LIBRARY.define(f"{head} -> ()")

        def mutate(*args: Any, impl: str | None = None) -> None:
            _execute(op, args, impl, ())

        _LIBRARY.impl(op.name, mutate, "CompositeExplicitAutograd")
        register_fake(f"tilesieve::{op.name}", lambda *a, **k: None, lib=_LIBRARY)
        return op

    outs = ", ".join(f"Tensor({chr(97 + i)}!) {name}" for i, name in enumerate(names))
    _LIBRARY.define(f"{head} -> {fresh}")
    _LIBRARY.define(f"{op.name}.out({op.schema}{separator}, str? impl=None, {outs}) -> ()")

    def allocate(*args: Any) -> tuple[Tensor, ...]:
        return tuple(empty(spec, _device(args)) for spec in op.outputs(*args))

    def functional(*args: Any, impl: str | None = None) -> Tensor | tuple[Tensor, ...]:
        out = allocate(*args)
        _execute(op, args, impl, out)
        return out[0] if len(out) == 1 else out

    def into(*args: Any, impl: str | None = None, **out: Tensor) -> None:
        _execute(op, args, impl, tuple(out[name] for name in names))

    def fake(*args: Any, impl: str | None = None) -> Tensor | tuple[Tensor, ...]:
        out = allocate(*args)
        return out[0] if len(out) == 1 else out

    _LIBRARY.impl(op.name, functional, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{op.name}.out", into, "CompositeExplicitAutograd")
    register_fake(f"tilesieve::{op.name}", fake, lib=_LIBRARY)
    register_fake(f"tilesieve::{op.name}.out", lambda *a, **k: None, lib=_LIBRARY)
    if op.gradient is not None:
        backward, setup = op.gradient
        register_autograd(f"tilesieve::{op.name}", backward, setup_context=setup, lib=_LIBRARY)
    return op


def call(op: Op, *args: Any, out: tuple[Tensor, ...] | None = None, impl: str | None = None) -> tuple[Tensor, ...]:
    """Run `op` on its flat arguments; returns its outputs, those of the caller where given.

    Raises ValueError for an `out` that does not fit, and for inputs that require grad where the op has
    no backward or writes into `out`: silence would drop the gradient.
    """
    wants_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(args))
    if wants_gradient and (op.gradient is None or out is not None):
        lacks = "has no backward" if op.gradient is None else "has no backward into out"
        raise ValueError(f"{op.name} {lacks} and an input requires grad; "
                         "call it under torch.no_grad() or detach the input")  # fmt: skip
    packet = getattr(torch.ops.tilesieve, op.name)
    if not op.returns:
        packet(*args, impl=impl)
        return ()
    if out is None:
        result = packet(*args, impl=impl)
        return (result,) if isinstance(result, Tensor) else tuple(result)
    specs = op.outputs(*args)
    if len(out) != len(specs):
        raise ValueError(f"out holds {len(out)} tensors; {op.name} returns {len(specs)}: {', '.join(op.returns)}")
    for name, tensor, (shape, dtype) in zip(op.returns, out, specs, strict=True):
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype or tensor.device != _device(args):
            raise ValueError(f"out: {name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; "
                             f"needed is {dtype} {tuple(shape)} on {_device(args)}")  # fmt: skip
    packet.out(*args, impl=impl, **dict(zip(op.returns, out, strict=True)))
    return out


def workspace_bytes(name: str, **bounds: int) -> int:
    """Scratch bytes one call of operator `name` needs, from host bounds alone (cost.py's arguments)."""
    return catalogue.cost(name)(**bounds).workspace
