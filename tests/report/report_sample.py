"""A study as the bench would write it: seven runs of a 30-layer model, with plausible numbers and no two alike."""

import math
import random
from typing import Any

from report_sections import findings, looks, overlaps, sections

LAYERS, TOKENS, HEADS = 30, 4096, 3
DENSE_BYTES = LAYERS * TOKENS * HEADS * 64 * 2 * 4
TEXT = (
    "The keeper climbed the stairs and found the lamp still burning although nobody had been in the "
    "tower since the storm , and the log on the table was open at a page that he had not written"
)
WORDS = TEXT.split()
# name, label, family, k, perplexity, mean mass, overlap, share of the dense bytes, first differing token
RUNS: tuple[tuple[str, str, str, int | None, float, float, float | None, float, int | None], ...] = (
    ("dense", "dense", "dense", None, 40.7031, 1.0, None, 1.0, None),
    ("exact-64", "exact top-64", "exact", 64, 47.9127, 0.842, 1.0, 0.5098, 4),
    ("exact-256", "exact top-256", "exact", 256, 42.1185, 0.951, 1.0, 0.5361, 17),
    ("exact-512", "exact top-512", "exact", 512, 41.2266, 0.978, 1.0, 0.5712, 23),
    ("lowrank-256", "low rank int8 d16, 256", "lowrank", 256, 42.9713, 0.917, 0.7342, 0.0957, 11),
    ("window-256", "4 sinks + 252 recent", "window", 256, 55.3141, 0.731, 0.4127, 0.0626, 2),
    ("full", "everything selected", "full", 4096, 40.7031, 1.0, 1.0, 1.0, None),
)


def study(layers: int = LAYERS, heads: int = 9) -> dict[str, Any]:
    """A fresh copy each time: tests break it on purpose. A smaller one where only its shape matters."""
    dice = random.Random(7)
    return {
        "schema": 2,
        "meta": {
            "model": "HuggingFaceTB/SmolLM2-135M", "text": "a novel, its first 4096 tokens", "tokens": TOKENS,
            "scored": [2048, TOKENS], "layers": layers, "heads": heads, "kv_heads": HEADS, "head_dim": 64,
            "dtype": "float32",
            "versions": {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.1.0", "tilesieve": "0.1.0"},
            "machine": {"cpu": "a laptop processor", "threads": 2}, "date": "2026-11-30T19:00:00Z",
            "command": "tilesieve study --tokens 4096 --out 'a folder'", "k": 256, "rows_looked": 256,
            "dense_layers": [],
            "sections": ["ladder", "retrieval", "sensitivity", "reuse", "gather", "numerics", "latent", "limits"],
        },
        "runs": [_run(dice, layers, heads, *numbers) for numbers in RUNS],
        "timeline": looks(dice, layers, TOKENS, [run[0] for run in RUNS if run[3] == 256 and run[2] != "window"]),
        "overlaps": overlaps(dice, layers),
        "sections": sections(dice, layers, heads, TOKENS, RUNS[0][4], DENSE_BYTES),
        "findings": findings(),
    }  # fmt: skip


def _run(
    dice: random.Random, count: int, heads: int, name: str, label: str, family: str, k: int | None,
    perplexity: float, mass: float, overlap: float | None, share: float, diverges: int | None,
) -> dict[str, Any]:  # fmt: skip
    delta = perplexity / RUNS[0][4] - 1
    layers = [] if family == "dense" else [_layer(dice, heads, at, mass, overlap) for at in range(count)]
    return {
        "name": name, "label": label, "family": family, "k": k, "perplexity": perplexity,
        "nll": math.log(perplexity), "delta": delta, "kl_mean": delta * 0.71, "kl_worst": delta * 19.3,
        "mass_mean": mass, "mass_worst": min((layer["mass_worst"] for layer in layers), default=1.0),
        "overlap": overlap, "bytes_per_token": int(DENSE_BYTES * share), "bytes_dense": DENSE_BYTES,
        "top1": 1.0 if family == "dense" else 1 - 0.3 * (1 - mass), "worst_at": 2100 + dice.randrange(1900),
        "rate": 1.0, "seconds": 12.1 + 9 * dice.random(), "layers": layers, "stages": _stages(dice, family, share),
        "continuation": _said(dice, diverges),
    }  # fmt: skip


def _layer(dice: random.Random, heads: int, at: int, mass: float, overlap: float | None) -> dict[str, Any]:
    dip = 2.2 if at in (3, 17) else 0.6 + 0.8 * dice.random()
    lost = (1 - mass) * dip
    kept = None if overlap is None else max(0.0, 1 - (1 - overlap) * dip)
    return {
        "layer": at, "mass_mean": 1 - lost, "mass_worst": max(0.02, 1 - 2.1 * lost), "overlap": kept,
        "top1": 1 - 0.4 * lost, "heads": [1 - lost * (0.3 + 1.4 * dice.random()) for _ in range(heads)],
    }  # fmt: skip


def _stages(dice: random.Random, family: str, share: float) -> list[dict[str, Any]]:
    ops = {
        "dense": (("compute", "gqa_decode"),),
        "window": (("select", "topk"), ("plan", "slots"), ("compute", "sparse_gqa")),
    }.get(family, (("score", "lowrank"), ("select", "topk"), ("plan", "slots"), ("compute", "sparse_gqa")))
    return [
        {
            "phase": phase, "stage": stage, "op": op, "calls": LAYERS * calls,
            "seconds": (0.02 + 0.2 * dice.random()) * calls / 8, "flops": dice.randrange(10**8, 10**11),
            "bytes_min": int(DENSE_BYTES * share * (0.1 + dice.random())),
        }
        for phase, calls in (("pass", 64), ("decode", 8))
        for stage, op in ops
    ]  # fmt: skip


def _said(dice: random.Random, diverges: int | None) -> dict[str, Any]:
    tokens, spoken = [1000 + 7 * at for at in range(len(WORDS))], list(WORDS)
    if diverges is not None:
        for at in range(diverges, len(tokens)):
            tokens[at] += 1 + dice.randrange(5)
            spoken[at] = WORDS[(at * 5 + 3) % len(WORDS)]
        spoken[diverges] = "lantern"
    return {
        "text": " " + " ".join(spoken), "tokens": tokens, "diverges_at": diverges,
        "tokens_per_second": 6 + 8 * dice.random(),
    }  # fmt: skip
