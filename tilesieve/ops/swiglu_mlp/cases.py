"""Where swiglu_mlp is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.fp8 import quantise_blocks, quantise_rows
from tilesieve.types import Case

ROWS = "x"


def _inputs(generator: Generator, *, tokens: int, width: int, inner: int, of: torch.dtype = torch.float32,
            quantiser: str | None = None, **more: Any) -> dict[str, Any]:  # fmt: skip
    x = torch.randn(tokens, width, generator=generator).to(of)
    w13 = (torch.randn(2 * inner, width, generator=generator) * max(width, 1) ** -0.5).to(of)
    w2 = (torch.randn(width, inner, generator=generator) * max(inner, 1) ** -0.5).to(of)
    inputs: dict[str, Any] = {"x": x, "w13": w13, "w2": w2, **more}
    if quantiser is not None:
        inputs["quantiser"] = quantiser
        inputs["x"], inputs["x_scale"] = quantise_rows(quantiser, x)
        for name, w in (("w13", w13), ("w2", w2)):
            inputs[name], inputs[f"{name}_scale"] = quantise_blocks(quantiser, w)
    return inputs


def _case(name: str, error: float, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), error)


# fp32 sums in another order, twice; largest seen 3.3e-7 of the largest result.
FP32 = 1e-6
# One value between the products, or of the result, on the other side of a rounding; largest seen 2.3e-5.
BF16, FP16 = 2**-7, 2**-10
CASES = (
    _case("small", FP32, tokens=5, width=24, inner=8),
    _case("bf16_clamped", BF16, tokens=33, width=40, inner=24, of=torch.bfloat16, limit=0.75),
    _case("odd", FP32, tokens=9, width=37, inner=19),
    _case("fp16", FP16, tokens=7, width=32, inner=48, of=torch.float16),
    _case("bf16_to_fp32", BF16, tokens=7, width=32, inner=48, of=torch.bfloat16, dtype=torch.float32),
    _case("more_than_a_pass", FP32, tokens=1061, width=5, inner=3),
    _case("fp8", BF16, tokens=6, width=256, inner=192, quantiser="e4m3_amax_pow2"),
    _case("fp8_ragged", BF16, tokens=6, width=200, inner=72, quantiser="e4m3_amax_linear", limit=1),
    _case("one_token", FP32, tokens=1, width=64, inner=32),
    _case("empty", FP32, tokens=0, width=16, inner=8),
    _case("no_inner", FP32, tokens=3, width=16, inner=0),
    _case("no_width", FP32, tokens=3, width=0, inner=8),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but token `row`."""
    return {**inputs, **{name: inputs[name][row : row + 1] for name in ("x", "x_scale") if name in inputs}}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    read = [t for t in inputs.values() if isinstance(t, Tensor)] if len(inputs["x"]) else []
    return sum(t.numel() * t.element_size() for t in [*read, *outputs])
