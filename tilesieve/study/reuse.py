"""Keeping a set for several steps: how often to select again, and by which rule, at nearly equal rates of selecting.

A row that keeps a set reads what came after it too, so a set is wider the longer it is kept.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward
from tilesieve.hf.session import Seen, Session
from tilesieve.layers.reuse import NEVER, turns
from tilesieve.policies import Cosine, Every, Policy
from tilesieve.study.bench import Bench
from tilesieve.study.store import Store

TOKENS = 2048
STEPS = (2, 4, 8, 16)
# Two thresholds that are often named: keep the set at 0.95 or more, select below 0.90.
NAMED = Cosine(0.95, 0.90)
# Halvings of the threshold's range: finer than two neighbouring cosines of a few thousand rows.
HALVINGS = 24

Rule = Every | Cosine


def reuse(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "reuse" of study.json: exact shared selection, each rule over at most TOKENS tokens of the text."""
    plan = bench.plan
    tokens = min(plan.tokens, TOKENS)
    k = plan.scaled(tokens)
    settings = {"tokens": tokens, "k": k}
    turned = Turned(bench, tokens)
    bands = store.part("reuse", "turn", settings, turned.bands)

    def run(name: str, label: str, rule: Rule) -> dict[str, Any]:
        numbers = bench.trial(Policy(k=k, reselect=rule), tokens, label).numbers()
        kept = ("rate", "perplexity", "delta", "kl_mean", "kl_worst", "mass_mean")
        return {"name": name, "label": label, **described(rule), **{key: numbers[key] for key in kept}}

    def calibrated(steps: int) -> dict[str, Any]:
        cosines = turned.cosines()
        rule = matching(cosines, rate_of(cosines, Every(steps)))
        return run(f"cosine-{steps}", f"cosine {rule.reuse:.3f}", rule) | {"matches": f"every-{steps}"}

    label = f"cosine {NAMED.reuse:.2f} / {NAMED.reselect:.2f}"
    jobs: dict[str, Callable[[], dict[str, Any]]] = {"always": partial(run, "always", "select always", Every(1))}
    for n in STEPS:
        jobs[f"every-{n}"] = partial(run, f"every-{n}", f"every {n} steps", Every(n))
        jobs[f"cosine-{n}"] = partial(calibrated, n)
    jobs["cosine-named"] = partial(run, "cosine-named", label, NAMED)
    runs = [store.part("reuse", name, settings, job) for name, job in jobs.items()]
    return {"k": k, "tokens": tokens, "scored": [tokens // 2, tokens], "runs": runs, "turn": bands}


def described(rule: Rule) -> dict[str, Any]:
    """threshold: of keeping; reselect: of selecting, the same but where the rule has two."""
    if isinstance(rule, Every):
        return {"rule": "always" if rule.steps == 1 else "every", "n": rule.steps, "threshold": None, "reselect": None}
    return {"rule": "cosine", "n": None, "threshold": rule.reuse, "reselect": rule.reselect}


class Turned:
    """Cosines of adjacent queries, by layer that may select, in a dense pass; run when first asked for."""

    def __init__(self, bench: Bench, tokens: int) -> None:
        self.bench, self.tokens = bench, tokens
        self.found: dict[int, Tensor] = {}

    def by_layer(self) -> dict[int, Tensor]:
        """fp64 [tokens-1] per layer."""
        if not self.found:
            bench = self.bench
            session = Session.new(bench.shape, None, tokens=self.tokens)
            found: dict[int, Tensor] = {}

            def look(seen: Seen) -> None:
                bench.tell("how queries turn", (seen.layer + 1) / bench.shape.layers)
                found[seen.layer] = turns(seen.q)

            session.watch = look
            forward(bench.model, bench.ids[: self.tokens], session, "prefill")
            # Layers that the model itself limits to a window have no tail, and select nothing.
            self.found = {layer: found[layer] for layer in session.tails}
        return self.found

    def cosines(self) -> list[list[float]]:
        return [row.tolist() for row in self.by_layer().values()]

    def bands(self) -> list[dict[str, Any]]:
        """The section's "turn": median and 10th percentile by layer."""
        at = torch.tensor([0.5, 0.1], dtype=torch.float64)
        return [{"layer": layer, **dict(zip(("median", "p10"), row.quantile(at).tolist(), strict=True))}
                for layer, row in self.by_layer().items()]  # fmt: skip


def rate_of(cosines: list[list[float]], rule: Rule) -> float:
    """The share of rows that select, over layers; cosines [layer][row - 1] of each row with the one before."""
    rows = sum(len(layer) + 1 for layer in cosines)
    return sum(selected(layer, rule) for layer in cosines) / rows


def selected(cosines: list[float], rule: Rule) -> int:
    """How many rows of a text select, as `tilesieve.layers.reuse.sources` decides it: the first does."""
    age, due, count = NEVER, True, 0
    for similarity in (math.nan, *cosines):
        due = rule.due(age + 1, similarity, due)
        age = 0 if due else age + 1
        count += due
    return count


def matching(cosines: list[list[float]], rate: float) -> Cosine:
    """The single threshold at which the rule selects at this rate, on these queries; the nearest rate there is."""
    low, high = -1.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if rate_of(cosines, Cosine(middle, middle)) < rate:
            low = middle
        else:
            high = middle
    return min((Cosine(t, t) for t in (high, low)), key=lambda rule: abs(rate_of(cosines, rule) - rate))
