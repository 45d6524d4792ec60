"""Where gate_bias_update is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case

ROWS = "bias"


def _inputs(generator: Generator, *, layers: int, experts: int, most: int, of: torch.dtype = torch.int64,
            **more: Any) -> dict[str, Any]:  # fmt: skip
    bias = torch.randn(layers, experts, generator=generator)
    loads = torch.randint(0, most + 1, (layers, experts), generator=generator).to(of)
    return {"bias": bias, "loads": loads, **more}


def _case(name: str, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape))


# No error: both forms round the same fp64 sum.
CASES = (
    _case("small", layers=3, experts=8, most=40),
    _case("v3", layers=58, experts=256, most=900, of=torch.int32, rate=1e-3),
    _case("many_at_the_mean", layers=9, experts=5, most=1),
    _case("large_loads", layers=2, experts=7, most=1 << 40, rate=0.1),
    _case("no_load", layers=2, experts=6, most=0),
    _case("one_expert", layers=4, experts=1, most=9),
    _case("empty", layers=0, experts=8, most=3),
    _case("no_experts", layers=2, experts=0, most=3),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but layer `row`."""
    return inputs | {name: inputs[name][row : row + 1] for name in ("bias", "loads")}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    return sum(t.numel() * t.element_size() for t in (inputs["bias"], inputs["loads"], *outputs))
