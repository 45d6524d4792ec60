"""What schema 2 added to a study, with plausible numbers: the ladder, retrieval, and all that the report draws."""

import math
import random
from typing import Any

Json = dict[str, Any]
# name, label, what it adds, own loss in nats per token, alone
RUNGS: tuple[tuple[str, str, str, float, float | None], ...] = (
    ("dense", "dense", "nothing: every position is read", 0.0, None),
    ("head", "top-256 per head", "each head reads its own 256 best positions", 0.0062, 0.0062),
    ("shared", "top-256 shared", "the heads of a layer share one selection", 0.0284, 0.0301),
    ("lowrank", "low-rank scores", "scores come from 16 of 64 dimensions, int8", 0.0193, 0.0154),
    ("fp8", "fp8 keys", "reduced keys in fp8 instead of int8", 0.0017, None),
    ("reuse", "select every 4 rows", "three of four rows keep the selection of the row before", 0.0078, 0.0061),
    ("ends", "sinks and recent kept", "4 first and 64 last positions are always in", -0.0035, -0.0049),
)


def sections(dice: random.Random, layers: int, heads: int, tokens: int, dense: float, bytes_dense: int) -> Json:
    """All of them."""
    scored = [tokens // 2, tokens]
    return {
        "ladder": ladder(dice, layers, heads, tokens, dense, bytes_dense),
        "retrieval": retrieval(dice),
        "sensitivity": {
            "k": 256, "tokens": tokens, "scored": scored, "policy": "low rank int8 d16, 256",
            **sensitivity(dice, layers, heads, dense, bytes_dense),
        },
        "reuse": {"k": 256, "tokens": tokens, "scored": scored, **reuse(dice, layers, dense)},
        "gather": gather(dice, layers),
        "numerics": {
            "global_max": {"largest_difference": 3.1e-7, "rounding": 9.5e-7, "rows": 61440, "worst_share": 0.33,
                           "largest_gap": 5.5, "breaks_at": 94.0, "nothing_at": 104.0},
            "unselected": [
                {"name": "exact-256", "label": "exact top-256", "perplexity": 41.71, "delta": 0.0247, "kl_mean": 0.0171,
                 "perplexity_ignored": 42.1185, "delta_ignored": 0.0348},
                {"name": "window-256", "label": "4 sinks + 252 recent", "perplexity": 51.93, "delta": 0.2758,
                 "kl_mean": 0.58, "perplexity_ignored": 55.3141, "delta_ignored": 0.359},
            ],
        },
        "latent": {"tokens": tokens, "scored": scored, "width": 384, **latent(dice, layers, dense)},
        "limits": {
            "context": 65536, "model": "SmolLM2-135M", "chip": {"name": "a laptop", "flops": 9.1e10},
            "lines": [
                {"name": "fused kernel, bf16", "k": 1730, "what": "bytes at 4.1 TB/s, one launch a stage"},
                {"name": "packed gather", "k": 1110, "what": "the same with a copy of the selected rows"},
                {"name": "host memory", "k": None, "what": "rows over PCIe at 52 GB/s"},
                {"name": "arithmetic alone", "k": 1250000, "what": "flops, no bytes at all"},
            ],
        },
    }  # fmt: skip


def ladder(dice: random.Random, layers: int, heads: int, tokens: int, dense: float, bytes_dense: int) -> Json:
    """Rungs whose own losses add up to the total; fp8 stands beside."""
    rungs, nll = [], math.log(dense)
    for at, (name, label, adds, own, alone) in enumerate(RUNGS):
        side = name == "fp8"
        here = nll + own
        nll = nll if side else here
        lost = 0.012 * at
        rungs.append({
            "name": name, "label": label, "adds": adds, "perplexity": math.exp(here), "nll": here,
            "delta": math.exp(here) / dense - 1, "own": own, "alone": alone, "kl_mean": 0.009 * at,
            "kl_worst": 0.4 * at + 0.01, "worst_at": 3000 + at, "mass_mean": 1 - lost, "mass_worst": 1 - 4 * lost,
            "top1": 1 - lost / 3, "overlap": None if at < 2 else 1 - 3 * lost, "rate": 0.25 if at > 4 else 1.0,
            "bytes_per_token": int(bytes_dense * (1.01 - 0.13 * at)),
            "layers": [
                {"layer": layer, "mass_mean": 1 - lost * (0.5 + dice.random()),
                 "mass_worst": 1 - 3 * lost - 0.001 * layer,
                 "overlap": 1 - 2 * lost - 0.002 * layer, "top1": 1 - lost / 4 - 0.0001 * layer,
                 "heads": [1 - lost * (0.3 + 1.4 * dice.random()) for _ in range(heads)]}
                for layer in range(layers if at else 0)
            ],
            **({"side": True} if side else {}),
        })  # fmt: skip
    total = sum(rung["own"] for rung in rungs if not rung.get("side"))
    alone = sum(rung["alone"] or 0 for rung in rungs)
    return {"tokens": tokens, "scored": [tokens // 2, tokens], "k": 256, "total": total, "sum_alone": alone,
            "interaction": total - alone, "rungs": rungs}  # fmt: skip


def retrieval(dice: random.Random) -> Json:
    """Three runs, one of which forgets the middle of long texts; and the case built to be missed."""
    lengths, depths = [512, 1024, 2048, 4096], [0.1, 0.3, 0.5, 0.7, 0.9]
    runs = []
    for name, label, weak in (("dense", "dense", 0.0), ("exact-256", "exact top-256", 0.15),
                              ("window-256", "4 sinks + 252 recent", 0.9)):  # fmt: skip
        cells = []
        for depth in depths:
            for length in lengths:
                lost = weak * (1 - depth) * length / 4096 * (0.8 + 0.2 * dice.random())
                cells.append({"length": length, "depth": depth, "logprob": -0.05 - 6 * lost, "right": 1 - lost,
                              "held": 1.0 if name == "dense" else 1 - 0.9 * lost})  # fmt: skip
        runs.append({"name": name, "label": label, "cells": cells})
    rows = [{"local_k": k, "kept": k >= 9, "error": 0.97 if k < 9 else 0.00031 / k} for k in (2, 4, 8, 9, 16)]
    return {
        "k": 256, "lengths": lengths, "ks": [32, 64, 128, 256], "depths": depths,
        "needle": "The keeper's secret number is",
        "needle_tokens": 7, "samples": 4, "runs": runs, "constructed": {"block": 128, "rank": 9, "rows": rows},
    }  # fmt: skip


def sensitivity(dice: random.Random, layers: int, heads: int, dense: float, bytes_dense: int) -> Json:
    """Two layers that pay, some heads that gain, and what leaving the worst dense buys."""
    rows = []
    for layer in range(layers):
        own = [(0.002 if layer in (3, 17) else 0.0003) * (dice.random() - 0.15) for _ in range(heads)]
        rows.append({"layer": layer, "cost": sum(own), "heads": own, "overlap": 1 - 0.3 * dice.random()})
    ranked = sorted(
        ({"layer": row["layer"], "head": head, "cost": cost} for row in rows for head, cost in enumerate(row["heads"])),
        key=lambda entry: -entry["cost"],
    )[:20]
    checked = [
        {"layer": row["layer"], "head": -1 if at % 2 else 0, "estimated": row["cost"],
         "measured": row["cost"] * (1.1 + 0.3 * dice.random())} for at, row in enumerate(rows[:: max(1, layers // 6)])
    ]  # fmt: skip
    exempt = []
    for at, left in enumerate(([], [3], [3, 17], [0, 3, 17, layers - 1])):
        lost = 0.0582 * 0.6**at
        exempt.append({
            "layers": left, "label": f"{len(left)} layers dense" if left else "nothing exempt",
            "perplexity": dense * math.exp(lost), "delta": math.expm1(lost),
            "bytes_per_token": int(bytes_dense * (0.0957 + 0.031 * len(left))),
        })  # fmt: skip
    by_k = [
        {"k": k, "layers": [{"layer": row["layer"], "cost": row["cost"] * 256 / k + 1e-6 * at} for row in rows]}
        for at, k in enumerate((128, 256, 512))
    ]
    return {"layers": rows, "ranked": ranked, "checked": checked, "exempt": exempt, "by_k": by_k}


def reuse(dice: random.Random, layers: int, dense: float) -> Json:
    """A fixed step against a rule that looks at the query."""
    runs = []
    for rule, values in (("always", (None,)), ("every", (2, 4, 8, 16)), ("cosine", (0.98, 0.95, 0.9, 0.8))):
        for at, value in enumerate(values):
            rate = 1.0 if value is None else 1 / value if rule == "every" else 0.55 * 0.5**at
            lost = 0.0348 + (0.05 if rule == "every" else 0.03) * (1 / rate - 1) / 8
            runs.append({
                "name": f"{rule}-{value}", "label": {"always": "every row", "every": f"every {value} rows",
                                                     "cosine": f"cosine below {value}"}[rule],
                "rule": rule, "n": value if rule == "every" else None,
                "threshold": value if rule == "cosine" else None, "rate": rate, "perplexity": dense * (1 + lost),
                "delta": lost, "kl_mean": lost * 0.7, "kl_worst": lost * 21, "mass_mean": 0.951 - lost / 3,
            })  # fmt: skip
    # Two thresholds by name, at a rate that a fitted one reached too.
    runs.append({**runs[-2], "name": "cosine-named", "label": "cosine 0.95 / 0.90", "threshold": 0.95, "rate": 0.1402,
                 "delta": 0.0871, "mass_mean": 0.9013})  # fmt: skip
    turn = [
        {"layer": at, "median": 0.9 - 0.2 * dice.random(), "p10": 0.6 - 0.3 * dice.random()} for at in range(layers)
    ]
    return {"runs": runs, "turn": turn}


def gather(dice: random.Random, layers: int) -> Json:
    """Layouts, the hot buffer, and longer texts."""
    layouts = [
        {"layout": layout, "order": order, "way": way,
         "runs": 31.7 + 9 * dice.random() if order == "sorted" else 240 + 9 * dice.random(),
         "bytes": 196608 * (2 if way == "packed" else 1) + (512 if layout == "head" else 0),
         "seconds": (41e-6 if way == "packed" else 23e-6) * (1 + dice.random() / 3)}
        for layout in ("token", "head") for order in ("sorted", "unsorted") for way in ("fused", "packed")
    ]  # fmt: skip
    return {
        "k": 256, "context": 4096, "rows": 256, "layer_count": layers, "layouts": layouts,
        "hot": [{"size": size, "hit": 1 - 0.9 / (1 + size / 300)} for size in (128, 256, 512, 1024, 2048)],
        "runs_by_layer": [40 + 60 * dice.random() for _ in range(layers)],
        "layer_ids": ([2, 5, 12] + [2 * n + 9 for n in range(3, layers)])[:layers],  # the others do not select
        "by_context": [
            {"context": length, "seconds": 2e-5 * (1 + length / 60000), "runs": 24 + length / 500}
            for length in (4096, 16384, 65536)
        ],
    }  # fmt: skip


def latent(dice: random.Random, layers: int, dense: float) -> Json:
    """Before the rotation keys compress well, after it they do not."""
    rows = []
    for where, weak in (("before rope", 0.02), ("after rope", 0.055)):
        for ratio, rank in ((2, 192), (4, 96), (8, 48)):
            lost = weak * ratio**1.3
            rows.append({
                "ratio": ratio, "rank": rank, "where": where, "perplexity": dense * (1 + lost), "delta": lost,
                "layers": [
                    {"layer": at, "error": lost + 0.1 * dice.random(), "key_error": lost * 0.7 + 0.1 * dice.random(),
                     "value_error": lost * 1.2 + 0.1 * dice.random()} for at in range(layers)
                ],
            })  # fmt: skip
    alone = [{"layer": at, "delta": 0.002 + 0.01 * dice.random()} for at in range(layers)]
    by_layer = [{**row, "perplexity": dense * (1 + row["delta"])} for row in alone]
    return {"rows": rows, "by_layer": {"ratio": 4, "rows": by_layer}}


def overlaps(dice: random.Random, layers: int) -> Json:
    """Neighbouring layers agree more."""
    matrix = [[1.0 if i == j else (0.75 + 0.1 * dice.random()) * 0.93 ** abs(i - j) for j in range(layers)]
              for i in range(layers)]  # fmt: skip
    steps = []
    for lag in (1, 2, 4, 8, 16, 32):
        own = [0.95 * lag**-0.13 - 0.15 * dice.random() for _ in range(layers)]
        steps.append({"lag": lag, "overlap": sum(own) / layers, "layers": own})
    return {"run": "exact-256", "k": 256, "rows": 256, "layers": matrix, "steps": steps,
            "layer_ids": list(range(layers))}  # fmt: skip


def looks(dice: random.Random, layers: int, tokens: int, runs: list[str]) -> list[Json]:
    """A shared look and three heads in three layers of each run."""
    return [
        look(dice, run, layer, head, tokens)
        for run in runs
        for layer in sorted({0, min(3, layers - 1), min(17, layers - 1)})
        for head in (-1, 0, 1, 2)
    ]


def look(dice: random.Random, run: str, layer: int, head: int, tokens: int, wide: int = 16) -> Json:
    """64 queries; a set near the query, some beacons that stay, some that wander."""
    queries = list(range(tokens // 64 - 1, tokens, tokens // 64))
    beacons = [dice.randrange(tokens) for _ in range(20)]
    cells, counts, near = [], [], 0.0
    for query in queries:
        back = (min(query, int(dice.expovariate(1 / 120))) for _ in range(60))
        picks = {0, 1, 2, 3, *(query - b for b in back), *(p for p in beacons if p <= query),
                 *(dice.randrange(query + 1) for _ in range(6))}  # fmt: skip
        cells.append(hexed({pick // wide for pick in picks}, -(-tokens // wide)))
        counts.append(len(picks))
        near += sum(query - pick < max(16, tokens // 16) for pick in picks) / len(picks) / len(queries)
    return {
        "run": run, "layer": layer, "head": head, "bin": wide, "length": tokens, "queries": queries, "cells": cells,
        "count": counts, "near": near, "spread": 0.05 + 0.3 * dice.random(), "stay": 0.4 + 0.4 * dice.random(),
        "drift": 0.3 * dice.random(),
    }  # fmt: skip


def hexed(cells: set[int], count: int) -> str:
    """Cell b is bit b of the string, four bits to a digit, the most significant first."""
    digits = [0] * -(-count // 4)
    for cell in cells:
        digits[cell // 4] |= 8 >> cell % 4
    return "".join(f"{digit:x}" for digit in digits)


def findings() -> list[Json]:
    """Two that fired, two that did not, one that was not measured."""
    rows: tuple[tuple[str, str, bool, float | None, float, str, str, str, str], ...] = (
        ("shared-set", "Sharing one selection costs most", True, 0.487, 0.4,
         "the rung “shared” makes up more than 40 % of the loss", "0.0284 of 0.0582 nats per token",
         "select per head, or per group of heads, in the layers that pay", "ladder"),
        ("weak-layer", "A layer keeps little of the attention", True, 0.817, 0.85,
         "a layer keeps less than 85 % of the mass", "layer 17 keeps 0.817 in low rank int8 d16, 256",
         "leave layer 17 dense, or give it twice the budget", "mass"),
        ("global-max", "The maximum of all scores matters", False, 3.1e-7, 9.5e-7,
         "the difference is larger than rounding allows", "3.1e-7 against 9.5e-7", "subtract the row's own maximum",
         "numerics"),
        ("retrieval-middle", "The middle of long texts is forgotten", False, 0.91, 0.8,
         "less than 80 % found at middle depths", "0.91 at depth 50 % and 4096 tokens", "more budget", "retrieval"),
        ("router", "Experts change with the selection", False, None, 0.1,
         "more than 10 % of the experts change", "only measured with --experts", "a larger budget", "nowhere"),
    )  # fmt: skip
    keys = ("id", "title", "fired", "value", "threshold", "trigger", "evidence", "try", "section")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def trace() -> Json:
    """A study of indices that some other engine wrote."""
    dice = random.Random(11)
    return {
        "schema": 2,
        "meta": {"trace": "engine.npz", "model": None, "layers": 6, "steps": 64, "date": "2026-11-30T19:00:00Z"},
        "runs": [],
        "timeline": [look(dice, "trace", layer, -1, 1024, 8) for layer in range(6)],
        "overlaps": overlaps(dice, 6) | {"run": "trace"},
        "sections": {"gather": {key: gather(dice, 6)[key] for key in ("hot", "runs_by_layer", "layer_ids")}},
        "findings": findings()[3:],
    }  # fmt: skip
