"""Retrieval: what each rung of the ladder loses of a needle, by length and depth. Decoding after a dense prompt."""

from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tilesieve.cache.pool import Pool
from tilesieve.hf.attention import forward
from tilesieve.hf.session import Seen, Session
from tilesieve.hf.shape import Shape
from tilesieve.layers.attention import Kept, Reads, attend_rows
from tilesieve.layers.projections import prefix
from tilesieve.ops.kv_append.op import kv_append
from tilesieve.ops.score_append.op import score_append
from tilesieve.policies import Policy, Scoring, window
from tilesieve.study.bench import Bench
from tilesieve.study.ladder import Rung, rungs
from tilesieve.study.measure import mask_of
from tilesieve.study.needles import SENTENCE, Needle, Question, plant
from tilesieve.study.plan import Plan
from tilesieve.study.store import Store

LENGTHS = (512, 1024, 2048)
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
SAMPLES = 2
# Without --full.
QUICK_LENGTH, QUICK_DEPTHS, QUICK_SAMPLES = 512, (0.1, 0.5, 0.9), 1
# One k stands for every length: labels whose sizes are those of one length say so in letters.
LABELS = MappingProxyType(
    {"per-head": "exact top-k per head", "shared": "exact top-k per layer", "approximate": "local top-k"}
)


def retrieval(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "retrieval". logprob in nats per true token; ks: the k of each length."""
    plan, shape = bench.plan, bench.shape
    depths, samples = (DEPTHS, SAMPLES) if plan.full else (QUICK_DEPTHS, QUICK_SAMPLES)
    section = {"k": plan.scaled(plan.tokens), "depths": list(depths), "samples": samples, "needle": SENTENCE.strip(),
               "lengths": [], "ks": [], "needle_tokens": None, "runs": [], "constructed": constructed()}  # fmt: skip
    try:
        question = Question.of(bench.tokenizer)
    except ValueError as error:
        return section | {"note": str(error)}
    lengths = lengths_of(plan, shape, question.least())
    if not lengths:
        return section | {"note": f"a needle needs {question.least()} tokens of text; there are {plan.tokens}"}
    runs: dict[str, dict[str, Any]] = {}
    for length in lengths:
        steps = ladder_and_window(plan, shape, length)
        for depth in depths:
            settings = {"samples": samples, "policies": [repr(rung.policy) for rung in steps]}
            make = partial(cell, bench, question, steps, length, depth, samples)
            found = store.part("retrieval", f"{length} at {depth}", settings, make)
            for rung in steps:
                run = runs.setdefault(rung.name, {"name": rung.name, "label": LABELS.get(rung.name, rung.label),
                                                  "side": rung.side, "cells": []})  # fmt: skip
                run["cells"].append({"length": length, "depth": depth, **found[rung.name]})
    ks = [plan.scaled(length) for length in lengths]
    return section | {
        "k": ks[-1], "ks": ks, "lengths": list(lengths), "needle_tokens": question.size, "runs": list(runs.values()),
    }  # fmt: skip


def lengths_of(plan: Plan, shape: Shape, least: int) -> tuple[int, ...]:
    """Texts to hide in: in full the usual lengths and the whole text, else one."""
    most = min(plan.tokens, plan.tokens if shape.context is None else shape.context)
    lengths = {*(n for n in LENGTHS if n < most), most} if plan.full else {min(QUICK_LENGTH, most)}
    return tuple(sorted(n for n in lengths if n >= least))


def ladder_and_window(plan: Plan, shape: Shape, length: int) -> tuple[Rung, ...]:
    """The ladder at this length, and beside it the window that needs no scores."""
    recent = window(plan.scaled(length))
    return (*rungs(plan, shape, length), Rung("window", "window", "the first and the most recent", recent, side=True))


def cell(bench: Bench, question: Question, steps: tuple[Rung, ...], length: int, depth: float,
         samples: int) -> dict[str, dict[str, float]]:  # fmt: skip
    """Numbers of each rung, mean over needles: one dense prompt each, from which every rung branches."""
    found: dict[str, list[Answer]] = {rung.name: [] for rung in steps}
    for sample in range(samples):
        # The same strings at every depth: cells of one length differ in nothing but the place.
        needle = plant(question, bench.ids, length, depth, seed=1000 * length + sample)
        bench.tell(f"needle at {depth:.0%} of {length} tokens", sample / samples)
        prompt = Session.new(bench.shape, None, tokens=length, prompt=needle.question)
        forward(bench.model, needle.ids[: needle.question], prompt, "prefill")
        for n, rung in enumerate(steps):
            found[rung.name].append(answer(bench.model, prompt.branch(rung.policy), needle))
            bench.tell(f"needle at {depth:.0%} of {length} tokens", (sample + (n + 1) / len(steps)) / samples)
    return {name: Answer.mean(answers) for name, answers in found.items()}


@dataclass(frozen=True)
class Answer:
    """logprob: nats per token of the string; right: share of them ranked first; held: share of (layer, head, row)
    sets that hold the planted token to copy, None where no layer selected."""

    logprob: float
    right: float
    held: float | None

    @staticmethod
    def mean(answers: list["Answer"]) -> dict[str, Any]:
        held = [a.held for a in answers if a.held is not None]
        return {
            "logprob": sum(a.logprob for a in answers) / len(answers),
            "right": sum(a.right for a in answers) / len(answers),
            "held": sum(held) / len(held) if held else None,
        }


def answer(model: Any, session: Session, needle: Needle) -> Answer:
    """The question and the true string, token by token as given, after a prompt that ends where the question begins."""
    layers: list[float] = []

    def look(seen: Seen) -> None:
        if seen.selections:
            layers.append(held(seen, needle))

    session.watch = look
    way = "dense" if session.policy is None else "rows"
    logits = forward(model, needle.ids[needle.question : -1], session, way, keep=needle.size)
    logprob, right = graded(logits, needle.ids[needle.asked :])
    if session.policy is None:  # every row sees every position
        return Answer(logprob, right, 1.0)
    return Answer(logprob, right, sum(layers) / len(layers) if layers else None)


def graded(logits: Tensor, targets: Tensor) -> tuple[float, float]:
    """Mean log-probability of targets [n] in nats, and the share that ranks first. logits [n,V]."""
    logprob = torch.log_softmax(logits.double(), -1).gather(-1, targets[:, None])
    return float(logprob.mean()), float((logits.argmax(-1) == targets).double().mean())


def held(seen: Seen, needle: Needle) -> float:
    """Share of (head, asked row) whose set holds the planted token that the row is to name next."""
    length = seen.start + seen.q.shape[0]
    mask = mask_of(seen.selections, seen.q.shape[1], length)[:, -needle.size :]
    copied = torch.arange(needle.planted, needle.planted + needle.size, device=mask.device)
    return float(mask.gather(2, copied.expand(mask.shape[0], -1)[..., None]).double().mean())


# The constructed case: the answer is 9th of its block by the coarse scores, and 9th of all.
BLOCK, BLOCKS, K, ANSWER = 64, 8, 64, 100


def coarse_scores() -> Tensor:
    """fp32 [512]: in the answer's block eight positions score 5 and the answer 4; eight of each other block 1 to 2."""
    scores = torch.zeros(BLOCKS, BLOCK)
    scores[:, :8] = torch.linspace(2.0, 1.0, BLOCKS * 8).view(BLOCKS, 8)
    scores[ANSWER // BLOCK, :8] = 5.0
    scores = scores.flatten()
    scores[ANSWER] = 4.0
    return scores


def constructed() -> dict[str, Any]:
    """A position that only the full keys know to be the answer, and approximate selection by 1 of 2 dimensions.

    The row's query is (1, 1), keys are (coarse score, 0) and the answer's (4, 12): attention over all of it is on
    the answer but for 8 e^-11. Values are (0, 1), the answer's (1, 0). error: of the output, relative to the one of
    exact selection by the same coarse scores.
    """
    length = BLOCK * BLOCKS
    keys = torch.zeros(length, 1, 2)
    keys[:, 0, 0] = coarse_scores()
    keys[ANSWER, 0, 1] = 12.0
    values = torch.tensor([0.0, 1.0]).repeat(length, 1, 1)
    values[ANSWER, 0] = torch.tensor([1.0, 0.0])
    pool = Pool.new(layers=1, tokens=length, heads=1, width=2, format="kv_fp32.head")
    seq = pool.book.open()
    slot = torch.tensor(pool.book.extend(seq, length))
    cache = pool.layers[0]
    kv_append(keys, values, cache.kv, slot)
    pool.add_scores(0, prefix(2, 1), "score_fp32")
    assert cache.score is not None and cache.projection is not None
    score_append(keys, cache.projection, cache.score, slot)
    reads = Reads(cache.kv, cache.score, cache.projection, pool.pages((seq,)))

    def run(local_k: int | None) -> tuple[bool, Tensor]:
        policy = Policy(k=K, scoring=Scoring("prefix", 1), last=0, local_k=local_k, block=BLOCK)
        kept = Kept()
        out = attend_rows(torch.ones(1, 1, 2), reads, seq, length - 1, policy, scale=1.0, keep=kept)
        return ANSWER in kept.selections[0].index[0].tolist(), out[0, 0].double()

    _, exact = run(None)
    rows = []
    for local_k in (4, 8, 9, 16):
        found, out = run(local_k)
        rows.append({"local_k": local_k, "kept": found, "error": float((out - exact).norm() / exact.norm())})
    return {"block": BLOCK, "k": K, "rank": 9, "rows": rows}
