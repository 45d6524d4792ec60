"""Mixture of experts of one layer: score, select, plan, compute, combine."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tilesieve.formats.fp8 import quantise_rows
from tilesieve.ops.combine.op import combine
from tilesieve.ops.experts.op import experts
from tilesieve.ops.gate.op import gate
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.ops.grouped_gemm.op import grouped_gemm
from tilesieve.ops.swiglu_mlp.op import swiglu_mlp
from tilesieve.types import Groups, Selection


@dataclass(frozen=True)
class Routing:
    """How a router chooses; the arguments of `gate` that belong to the model."""

    k: int
    score: str = "sigmoid"
    groups: int = 1
    top_groups: int | None = None
    group_score: str | None = None
    renormalise: bool = True
    epsilon: str = "add"
    scale: float = 1.0


@dataclass(frozen=True)
class MLP:
    """w13 [.., 2I,D] with the gate rows first, w2 [.., D,I]; of e4m3 their scales. Routed ones are stacks of E
    or lists of E, a shared one is a pair of matrices."""

    w13: Tensor | Sequence[Tensor]
    w2: Tensor | Sequence[Tensor]
    w13_scale: Tensor | Sequence[Tensor] | None = None
    w2_scale: Tensor | Sequence[Tensor] | None = None


@dataclass(frozen=True)
class MoE:
    """The weights of a layer. router [E,D]; bias fp32 [E] or None, for selection only; quantiser: by which
    name of formats.fp8 activations are quantised where the experts are e4m3; limit as in `swiglu_mlp`."""

    router: Tensor
    routed: MLP
    shared: MLP | None = None
    bias: Tensor | None = None
    quantiser: str | None = None
    limit: float | None = None


def moe(x: Tensor, layer: MoE, routing: Routing, *, mask: Tensor | None = None, ids: Tensor | None = None,
        weight_at: str = "combine", order: str = "choice") -> Tensor:  # fmt: skip
    """x fp32, bf16 or fp16 [T,D] -> [T,D], x's dtype.

    mask  bool [T]: False is a token that no routed expert sees
    ids   int32 or int64 [T,K]: experts already chosen (a hash of the token), -1 none; the router weighs them
    weight_at, order  as in `experts` and `combine`

    The same five lines as attention. A token's result does not depend on the other tokens, bit for bit.
    """
    logits = score(x, layer.router)
    selection = select(logits, layer, routing, mask, ids)
    groups = group_rows(selection, experts=logits.shape[1])
    rows = compute(x, groups, layer, selection, weight_at)
    return combine(rows, groups, weight_of(selection, weight_at), shared=shared(x, layer), order=order)


def score(x: Tensor, router: Tensor) -> Tensor:
    """Router logits fp32 [T,E]. As a group of one: a plain product gives a token other bits in another
    batch, and at a near tie another expert."""
    each = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
    ends = torch.tensor([0, x.shape[0]], dtype=torch.int32, device=x.device)
    tiles = torch.empty(0, 3, dtype=torch.int32, device=x.device)
    return grouped_gemm(x.float(), Groups(each, torch.zeros_like(each), ends, tiles, x.shape[0]), router.float()[None])


def select(logits: Tensor, layer: MoE, routing: Routing, mask: Tensor | None, ids: Tensor | None) -> Selection:
    """The experts of each token and their weights, scaled."""
    if ids is not None:
        return gate(logits, ids=ids, mask=mask, score=routing.score, renormalise=routing.renormalise,
                    epsilon=routing.epsilon, scale=routing.scale)  # fmt: skip
    return gate(logits, k=routing.k, score=routing.score, bias=layer.bias, groups=routing.groups,
                top_groups=routing.top_groups, group_score=routing.group_score, renormalise=routing.renormalise,
                epsilon=routing.epsilon, scale=routing.scale, mask=mask)  # fmt: skip


def compute(x: Tensor, groups: Groups, layer: MoE, selection: Selection, weight_at: str = "combine") -> Tensor:
    """The routed experts' rows [N,D], x's dtype."""
    weight = None if weight_at == "combine" else selection.weight
    data, scale = (x, None) if layer.quantiser is None else quantise_rows(layer.quantiser, x)
    of = layer.routed
    return experts(data, groups, of.w13, of.w2, weight, weight_at=weight_at, limit=layer.limit, x_scale=scale,
                   w13_scale=of.w13_scale, w2_scale=of.w2_scale, quantiser=layer.quantiser, dtype=x.dtype)  # fmt: skip


def weight_of(selection: Selection, weight_at: str) -> Tensor:
    """What `combine` multiplies: the router weights, or ones where the experts have multiplied already."""
    assert selection.weight is not None
    return selection.weight if weight_at == "combine" else torch.ones_like(selection.weight)


def shared(x: Tensor, layer: MoE) -> Tensor | None:
    """The shared expert's rows [T,D], x's dtype; None where there is none."""
    of = layer.shared
    if of is None:
        return None
    data, scale = (x, None) if layer.quantiser is None else quantise_rows(layer.quantiser, x)
    tensors = [of.w13, of.w2, of.w13_scale, of.w2_scale]
    w13, w2, w13_scale, w2_scale = (t if t is None or isinstance(t, Tensor) else t[0] for t in tensors)
    assert w13 is not None and w2 is not None
    return swiglu_mlp(data, w13, w2, limit=layer.limit, x_scale=scale, w13_scale=w13_scale, w2_scale=w2_scale,
                      quantiser=layer.quantiser, dtype=x.dtype)  # fmt: skip
