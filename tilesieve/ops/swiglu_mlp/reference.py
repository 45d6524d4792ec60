"""swiglu_mlp, products in fp64. T tokens, D width, I expert width, B blocks of 128 of D."""

import torch
from torch import Tensor

from tilesieve.formats.fp8 import quantise_rows
from tilesieve.ops.grouped_gemm.reference import product


def swiglu(gate: Tensor, up: Tensor, limit: float | None) -> Tensor:
    """silu(gate) * up in fp32; with a limit, gate is at most it and up within +-it. NaN stays NaN.

    Not torch.sigmoid: it gives an element other bits in a vector's body than in its tail; exp does not.
    """
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / (1.0 + (-gate).exp()) * up


def between(h: Tensor, like: Tensor, quantiser: str | None) -> tuple[Tensor, Tensor | None]:
    """What the down product reads of h, fp32: h in x's dtype, or codes and scales."""
    return (h.to(like.dtype), None) if quantiser is None else quantise_rows(quantiser, h)


def swiglu_mlp(x_TD: Tensor, w13: Tensor, w2_DI: Tensor, limit: float | None, x_scale_TB: Tensor | None,
               w13_scale: Tensor | None, w2_scale: Tensor | None, quantiser: str | None,
               dtype: torch.dtype) -> Tensor:  # fmt: skip
    gate_TI, up_TI = product(x_TD, w13, x_scale_TB, w13_scale).chunk(2, 1)
    h_TI, h_scale = between(swiglu(gate_TI, up_TI, limit), x_TD, quantiser)
    return product(h_TI, w2_DI, h_scale, w2_scale).to(dtype)
