"""The ladder: from dense to the whole approximation, one stage at a time, so that each stage's loss has its own number.

Rungs add up: the loss of a rung over the one before it is that stage's own, and their sum is the total. A stage by
itself, on top of exact selection alone, may lose less or more; what the sum of those lacks is the interaction.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilesieve.hf.shape import Shape
from tilesieve.policies import Every, Policy, Scoring
from tilesieve.study.bench import Bench, score_numbers
from tilesieve.study.looks import looks
from tilesieve.study.measure import WHOLE, Divergence, Watch
from tilesieve.study.plan import Plan
from tilesieve.study.store import Store
from tilesieve.study.trace import Recorder

# Most text of the ladder without --full (a quarter of the study's at most), and steps behind the bytes of a rung.
TOKENS, STEPS = 512, 8
# The rung whose stage every later one is put on by itself.
BASE = "shared"


@dataclass(frozen=True)
class Rung:
    """adds: the stage in words. by_itself: exact shared selection with this stage only; None where that is the rung.

    side: an alternative to the rung before it, compared with what that one is compared with, and not summed.
    """

    name: str
    label: str
    adds: str
    policy: Policy | None
    by_itself: Policy | None = None
    side: bool = False


def rungs(plan: Plan, shape: Shape, tokens: int) -> tuple[Rung, ...]:
    """The same k, ends kept in all of them, so that a rung differs from the one before it in one thing."""
    k = plan.scaled(tokens)
    first, last = plan.ends(k)
    reduced = plan.reduced(shape)
    narrow = "score_int8" if reduced.format == "score_fp32" else reduced.format
    other = "score_fp8" if narrow == "score_int8" else "score_int8"
    exact = Policy(k=k, first=first, last=last)
    lowrank = replace(exact, scoring=replace(reduced, format="score_fp32"))
    coarse = replace(exact, scoring=replace(reduced, format=narrow))
    local, block = max(1, k // 4), max(1, tokens // 8)
    approximate = replace(coarse, local_k=local, block=block)
    whole = Scoring("prefix", shape.head_dim, narrow)
    short = {name: name.removeprefix("score_") for name in (narrow, other)}
    return (
        Rung("dense", "dense", "nothing", None),
        Rung("per-head", f"exact top-{k} per head", "exact selection of k positions, each head its own",
             replace(exact, share="q_head")),
        Rung(BASE, f"exact top-{k} per layer", "one set for all heads of a layer", exact),
        Rung("low-rank", f"low rank d{reduced.columns}", f"scores by {reduced.columns} of {shape.head_dim} dimensions",
             lowrank),
        Rung("narrow", f"low rank {short[narrow]}", f"reduced keys in {short[narrow]}", coarse,
             replace(exact, scoring=whole)),
        Rung("other", f"low rank {short[other]}", f"the same in {short[other]}",
             replace(exact, scoring=replace(reduced, format=other)), side=True),
        Rung("approximate", f"local top-{local} per {block}", f"approximate top-k: {local} candidates per {block}",
             approximate, replace(exact, local_k=local, block=block)),
        Rung("reuse", "reuse 4 steps", "a set is kept for 4 steps", replace(approximate, reselect=Every(4)),
             replace(exact, reselect=Every(4))),
    )  # fmt: skip


def ladder(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "ladder"; its "timeline" holds the looks of the per-head rung, one per layer and head."""
    plan = bench.plan
    tokens = plan.tokens if plan.full else min(max(plan.tokens // 4, 32), TOKENS)
    steps = rungs(plan, bench.shape, tokens)
    rows: list[dict[str, Any]] = []
    timeline: list[dict[str, Any]] = []
    for rung in steps:
        settings = {"tokens": tokens, "policy": repr(rung.policy)}
        found = store.part("ladder", rung.name, settings, partial(climb, bench, rung, tokens))
        timeline += found.get("timeline", [])
        row = {"name": rung.name, "label": rung.label, "adds": rung.adds, "side": rung.side}
        row |= {key: value for key, value in found.items() if key != "timeline"}
        before = next((r for r in reversed(rows) if not r["side"]), None)
        if rung.side:  # beside the rung before, so against the one below that
            before = [r for r in rows if not r["side"]][-2]
        row["own"] = 0.0 if before is None else row["nll"] - before["nll"]
        rows.append(row)
    base = next(row for row in rows if row["name"] == BASE)
    for rung, row in zip(steps, rows, strict=True):
        row["alone"] = None if rung.side else row["own"]
        if rung.by_itself is not None:
            settings = {"tokens": tokens, "policy": repr(rung.by_itself)}
            alone = store.part("ladder", f"{rung.name} alone", settings, partial(lost, bench, rung, tokens))
            row |= {"alone": alone["nll"] - base["nll"], "alone_layers": alone["layers"]}
    summed = [row for row in rows if not row["side"]]
    total = summed[-1]["nll"] - summed[0]["nll"]
    alone = sum(row["alone"] for row in summed)
    return {
        "tokens": tokens, "scored": [tokens // 2, tokens], "k": plan.scaled(tokens), "rungs": rows, "total": total,
        "sum_alone": alone, "interaction": total - alone, "timeline": timeline,
    }  # fmt: skip


def climb(bench: Bench, rung: Rung, tokens: int) -> dict[str, Any]:
    """One rung's own numbers."""
    if rung.policy is None:
        dense = bench.dense(tokens)
        numbers = score_numbers(dense.nll, dense.nll, Divergence(0.0, 0.0, None)) | WHOLE
        return numbers | {"bytes_per_token": bench.decode_bytes(None, tokens, min(STEPS, bench.plan.steps))}
    recorder = Recorder(tokens) if rung.policy.share == "q_head" else None
    trial = bench.trial(rung.policy, tokens, rung.label, Watch(recorder=recorder))
    numbers = trial.numbers() | {
        "bytes_per_token": bench.decode_bytes(rung.policy, tokens, min(STEPS, bench.plan.steps))
    }
    if recorder is not None:
        numbers["timeline"] = [{"run": f"ladder {rung.name}", **look} for look in looks(recorder.trace)]
    return numbers


def lost(bench: Bench, rung: Rung, tokens: int) -> dict[str, Any]:
    """nll of the rung's stage by itself, and by layer how much of the exact set it finds."""
    assert rung.by_itself is not None
    trial = bench.trial(rung.by_itself, tokens, f"{rung.label}, alone")
    return {"nll": trial.nll, "layers": [{"layer": n.layer, "overlap": n.overlap} for n in trial.watch.layers]}
