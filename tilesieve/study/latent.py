"""Latents: K and V of a finished model squeezed through a truncated SVD, as if its cache kept fewer numbers a token.

No training, so a bound from below on what a model that learned its latents can do. One basis per layer for
the keys and values of all its kv heads together, fitted on the first half of a text and put to use on all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward
from tilesieve.hf.session import Session
from tilesieve.layers.dense import contiguous
from tilesieve.study.bench import Bench
from tilesieve.study.measure import loss
from tilesieve.study.store import Store

RATIOS = (2, 4, 8, 16)
# One layer at a time is squeezed by this much.
LAYER_RATIO = 8
TOKENS, FULL_TOKENS = 1024, 2048
AFTER, BEFORE = "after rope", "before rope"
HALVES = ("k_proj", "v_proj")


def latent(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "latent". error: of K and V together on the second half, relative Frobenius norm, as the dense pass
    made them; fitted_error: on the first. delta: of perplexity, with what earlier layers' losses do to later ones.

    by_layer.where: before rope where the model lets one see its keys there.
    """
    plan, layers = bench.plan, range(bench.shape.layers)
    tokens = min(plan.tokens, FULL_TOKENS if plan.full else TOKENS)
    inside = tokens_facts(bench, store, tokens)
    places = [AFTER, BEFORE] if inside["separate"] else [AFTER]
    rows = []
    for where in places:
        caught = Caught(bench, where, tokens)
        for ratio in RATIOS:
            label = f"{where}, ratio {ratio}"
            rows.append(store.part("latent", label, {"tokens": tokens}, partial(squeezed, caught, ratio, label)))
    few = min(tokens, TOKENS)
    caught = Caught(bench, places[-1], few)
    alone = []
    for layer in layers:
        label = f"layer {layer}, ratio {LAYER_RATIO}"
        settings = {"tokens": few, "where": places[-1]}
        row = store.part("latent", label, settings, partial(squeezed, caught, LAYER_RATIO, label, (layer,)))
        alone.append({"layer": layer, "perplexity": row["perplexity"], "delta": row["delta"]})
    section = {
        "tokens": tokens, "scored": [tokens // 2, tokens], "width": inside["width"], "rows": rows,
        "by_layer": {"ratio": LAYER_RATIO, "tokens": few, "where": places[-1], "rows": alone},
    }  # fmt: skip
    if not inside["separate"]:
        section["note"] = "after rope only: this model computes its keys in one matrix with others (no k_proj, v_proj)"
    return section


def tokens_facts(bench: Bench, store: Store, tokens: int) -> dict[str, Any]:
    """width: numbers per token and layer; separate: whether keys can be changed before rope."""

    def look() -> dict[str, Any]:
        modules = projections(bench.model)
        return {"width": Caught(bench, AFTER, tokens).rows[0].shape[1], "separate": len(modules) == bench.shape.layers}

    found: dict[str, Any] = store.part("latent", "model", {"tokens": tokens}, look)
    return found


def projections(model: Any) -> dict[int, Any]:
    """The modules with a k_proj and a v_proj, by layer."""
    return {m.layer_idx: m for m in model.modules() if all(hasattr(m, n) for n in (*HALVES, "layer_idx"))}


@dataclass
class Caught:
    """[K;V] of the dense pass over the first `tokens`, per layer [tokens, width], and each layer's basis."""

    bench: Bench
    where: str
    tokens: int
    _bases: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def key_width(self) -> int:
        """Columns of a row that are keys, G * D; the rest are values."""
        key, _ = contents(self.bench.dense(self.tokens).session, 0, 1)
        return key.shape[1]

    @cached_property
    def rows(self) -> list[Tensor]:
        return cached(self.bench, self.tokens) if self.where == AFTER else projected(self.bench, self.tokens)

    def basis(self, layer: int) -> Tensor:
        """fp64 [width, width], principal directions of the first half, descending."""
        if layer not in self._bases:
            self._bases[layer] = principal(self.rows[layer][: self.tokens // 2])
        return self._bases[layer]

    def rank(self, ratio: int) -> int:
        return max(1, self.rows[0].shape[1] // ratio)


def contents(session: Session, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
    """K [tokens, G*D] and V [tokens, G*Dv] of a layer's cache."""
    assert session.pool is not None and session.pages is not None
    key, value = contiguous(session.pool.layers[layer].kv, session.pages, session.seq, tokens)
    return key.transpose(0, 1).flatten(1), value.transpose(0, 1).flatten(1)


def cached(bench: Bench, tokens: int) -> list[Tensor]:
    """What the dense pass left in its caches: keys after rope, and values."""
    session = bench.dense(tokens).session
    return [torch.cat(contents(session, layer, tokens), 1) for layer in range(bench.shape.layers)]


def projected(bench: Bench, tokens: int) -> list[Tensor]:
    """What k_proj and v_proj put out in a dense pass: keys before rope and before any norm of theirs, and values."""
    found: dict[tuple[int, str], Tensor] = {}
    handles = [
        getattr(module, half).register_forward_hook(partial(keep, found, (layer, half)))
        for layer, module in projections(bench.model).items()
        for half in HALVES
    ]
    try:
        run(bench, tokens, Session.new(bench.shape, None, tokens=tokens), "keys before rope")
    finally:
        for handle in handles:
            handle.remove()
    return [torch.cat([found[layer, half] for half in HALVES], 1) for layer in range(bench.shape.layers)]


def keep(found: dict[tuple[int, str], Tensor], name: tuple[int, str], module: Any, inputs: Any, output: Tensor) -> None:
    """A forward hook: remembers a copy of what the module put out."""
    found[name] = output[0].clone()


def principal(rows: Tensor) -> Tensor:
    """fp64 [width, width]: right singular vectors of rows [N, width], uncentred, by descending singular value."""
    wide = rows.double()
    _, vectors = torch.linalg.eigh(wide.T @ wide)
    return vectors.flip(-1)


def through(rows: Tensor, basis: Tensor) -> Tensor:
    """rows [N, width] as their coordinates along basis [width, rank] give them back; rows' dtype."""
    basis = basis.to(rows.dtype)
    return rows @ basis @ basis.T


def relative(rows: Tensor, found: Tensor) -> float:
    """||rows - found|| / ||rows||, Frobenius; 0 for rows of zeros."""
    norm = float(rows.norm())
    return float((rows - found).norm()) / norm if norm else 0.0


def squeezed(caught: Caught, ratio: int, label: str, layers: tuple[int, ...] | None = None) -> dict[str, Any]:
    """A dense pass with the K and V of `layers` (all) at 1 / ratio of their numbers."""
    bench, tokens, rank = caught.bench, caught.tokens, caught.rank(ratio)
    bases = {n: caught.basis(n)[:, :rank] for n in (range(bench.shape.layers) if layers is None else layers)}
    nll = lossy(bench, caught.where, tokens, bases, label)
    delta = float(torch.tensor(nll - bench.dense(tokens).nll, dtype=torch.float64).expm1())
    errors = []
    for layer, basis in bases.items():
        rows = caught.rows[layer].double()
        found, key, half = through(rows, basis), caught.key_width, tokens // 2
        errors.append({
            "layer": layer, "error": relative(rows[half:], found[half:]),
            "key_error": relative(rows[half:, :key], found[half:, :key]),
            "value_error": relative(rows[half:, key:], found[half:, key:]),
            "fitted_error": relative(rows[:half], found[:half]),
        })  # fmt: skip
    return {"ratio": ratio, "rank": rank, "where": caught.where, "perplexity": float(torch.tensor(nll).double().exp()),
            "delta": delta, "layers": errors}  # fmt: skip


def lossy(bench: Bench, where: str, tokens: int, bases: dict[int, Tensor], label: str) -> float:
    """nll of the second half, dense attention, K and V of the layers in `bases` through their basis."""
    if where == BEFORE:
        with before_rope(bench.model, bases):
            return run(bench, tokens, Session.new(bench.shape, None, tokens=tokens), label)
    session = Squeezed.new(bench.shape, None, tokens=tokens)
    assert isinstance(session, Squeezed)
    session.bases = bases
    return run(bench, tokens, session, label)


def run(bench: Bench, tokens: int, session: Session, label: str) -> float:
    """nll of the second half of a dense pass by this session."""
    start = tokens // 2
    session.watch = lambda seen: bench.tell(label, (seen.layer + 1) / bench.shape.layers)
    logits = forward(bench.model, bench.ids[:tokens], session, "prefill", keep=tokens - start + 1)[:-1]
    return loss(logits, bench.ids[start:tokens])


@dataclass
class Squeezed(Session):
    """A session whose caches hold what is left of K and V after the basis of their layer."""

    bases: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        if layer in self.bases:
            found = through(torch.cat([k.flatten(1), v.flatten(1)], 1), self.bases[layer])
            k, v = found[:, : k[0].numel()].view_as(k), found[:, k[0].numel() :].view_as(v)
        return super().attend(layer, q, k, v, scale, window)


@contextmanager
def before_rope(model: Any, bases: dict[int, Tensor]) -> Iterator[None]:
    """While it lasts, k_proj and v_proj of these layers put out what the basis leaves of them."""
    handles = []

    def change(module: Any, half: str, basis: Tensor) -> Callable[..., Tensor]:
        def hook(projection: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # Its other half is not there yet, or gone: computed again, past the hooks.
            x = inputs[0]
            key = output if half == "k_proj" else module.k_proj.forward(x)
            value = output if half == "v_proj" else module.v_proj.forward(x)
            found = through(torch.cat([key, value], -1)[0], basis)[None]
            width = key.shape[-1]
            return found[..., :width] if half == "k_proj" else found[..., width:]

        return hook

    try:
        for layer, module in projections(model).items():
            if layer in bases:
                for half in HALVES:
                    handles.append(getattr(module, half).register_forward_hook(change(module, half, bases[layer])))
        yield
    finally:
        for handle in handles:
            handle.remove()
