"""The sweep: dense first, then each policy over the whole text, with a continuation and a timeline."""

import time
from pathlib import Path
from typing import Any

import torch

from tilesieve.hf.attention import forward
from tilesieve.hf.session import Session
from tilesieve.ledger.ledger import Ledger
from tilesieve.ops.run import observe
from tilesieve.study.bench import Bench, moved, score_numbers
from tilesieve.study.looks import looks
from tilesieve.study.measure import WHOLE, Divergence, Watch
from tilesieve.study.overlaps import overlaps
from tilesieve.study.plan import DENSE, Config
from tilesieve.study.trace import Recorder, Trace, write_trace


def dense_run(bench: Bench) -> dict[str, Any]:
    """Dense over the text: perplexity, the caches to continue from, and dense's own continuation."""
    dense = bench.dense(bench.plan.tokens)
    continued = continuation(bench, dense.session.branch(), dense.book, None)
    numbers = score_numbers(dense.nll, dense.nll, Divergence(0.0, 0.0, None))
    return described(bench, DENSE, numbers | WHOLE, dense.seconds, dense.book, continued)


def sparse_run(bench: Bench, config: Config, dense: dict[str, Any],
               folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:  # fmt: skip
    """One policy over the text. Returns the run and, for those whose timeline is drawn, what was selected."""
    assert config.policy is not None
    plan = bench.plan
    recorder = Recorder(plan.tokens) if plan.drawn(config) else None
    trial = bench.trial(config.policy, plan.tokens, config.label, Watch(recorder=recorder))
    prompt = bench.dense(plan.tokens).session
    continued = continuation(bench, prompt.branch(config.policy), trial.book, dense["continuation"])
    run = described(bench, config, trial.numbers(), trial.seconds, trial.book, continued)
    return run, None if recorder is None else traced(config, recorder.trace, folder)


def traced(config: Config, trace: Trace, folder: Path) -> dict[str, Any]:
    """What study.json holds of a trace; the trace itself goes to a file of its own."""
    write_trace(trace, folder / f"trace-{config.name}.jsonl", run=config.name)
    return {
        "timeline": [{"run": config.name, **look} for look in looks(trace)],
        "overlaps": {"run": config.name, **overlaps(trace)},
    }


def continuation(bench: Bench, session: Session, book: Ledger, dense: dict[str, Any] | None) -> dict[str, Any]:
    """Greedy tokens after the whole text, from the dense prompt's caches, by the session's policy."""
    way = "dense" if session.policy is None else "step"
    session.watch = None
    session.around = lambda: observe(book)
    tokens = [int(bench.dense(bench.plan.tokens).last.argmax())]
    with book.phase("prompt"):
        session.prime()
    start = time.perf_counter()
    with book.phase("decode"):
        for _ in range(bench.plan.steps - 1):
            logits = forward(bench.model, torch.tensor(tokens[-1:]), session, way)
            tokens.append(int(logits[-1].argmax()))
    seconds = time.perf_counter() - start
    reference = tokens if dense is None else dense["tokens"]
    diverges = next((i for i, (a, b) in enumerate(zip(tokens, reference, strict=False)) if a != b), None)
    return {
        "text": bench.tokenizer.decode(tokens),
        "tokens": tokens,
        "diverges_at": diverges,
        "tokens_per_second": (len(tokens) - 1) / seconds if len(tokens) > 1 else None,
    }


def described(bench: Bench, config: Config, numbers: dict[str, Any], seconds: float, book: Ledger,
              continued: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """A run as study.json holds it."""
    plan, policy = bench.plan, config.policy
    return {
        "name": config.name, "label": config.label, "family": config.family,
        "k": None if policy is None else min(policy.k, plan.tokens),
        **numbers,
        "bytes_per_token": moved(book) // max(1, plan.steps - 1), "bytes_dense": None,
        "seconds": seconds, "stages": book.as_dicts(), "continuation": continued,
    }  # fmt: skip
