"""The study: dense first, then each policy of the sweep, on one model and one text."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward, install
from tilesieve.hf.load import Checkpoint, default_model
from tilesieve.hf.session import Seen, Session
from tilesieve.hf.shape import Shape
from tilesieve.ledger.ledger import Ledger
from tilesieve.ops.run import observe
from tilesieve.study.describe import DTYPE, assemble, key_of
from tilesieve.study.measure import Watch, divergence, loss
from tilesieve.study.plan import DENSE, Config, Plan
from tilesieve.study.store import Store, plain, writable
from tilesieve.study.texts import hamlet, read_text

Tell = Callable[[str, float], None]


@dataclass
class Bench:
    """What all runs of a study share. `logits` are dense's over the scored tokens."""

    plan: Plan
    model: Any
    tokenizer: Any
    shape: Shape
    ids: Tensor
    tell: Tell
    prompt: Session | None = None
    first: Tensor | None = None
    logits: Tensor | None = None


def run_study(plan: Plan, out: Path, *, fresh: bool = False, tell: Tell = lambda what, done: None) -> dict[str, Any]:
    """Run what is missing of `plan` in `out`; returns the study as written to out/study.json.

    tell(what, share done) is called as work goes on. Raises ValueError for a model, a text, a value
    or a folder that cannot be used, before anything long has run.
    """
    writable(out)
    model_path = plan.model or default_model()
    text_path = plan.text or hamlet()
    text = read_text(text_path)
    tell("loading the model", 0.0)
    checkpoint = Checkpoint.open(model_path)
    check(plan, checkpoint.shape)
    ids = encode(checkpoint.tokenizer, text, plan, text_path)
    store = Store(out, key_of(plan, checkpoint.shape, model_path, text), fresh)
    done = store.runs()
    todo = [config for config in (DENSE, *plan.sweep(checkpoint.shape)) if config.name not in done]
    if todo:
        model = checkpoint.model(DTYPE)
        install(model)
        bench = Bench(plan, model, checkpoint.tokenizer, checkpoint.shape, ids, tell)
        dense = dense_run(bench)
        if bench.prompt is None or not bench.prompt.tails:
            raise ValueError(f"model is {model_path}: every layer limits itself to a window; none can select")
        if DENSE.name not in done:
            store.add(dense, [])
        else:
            dense = done[DENSE.name]
        for config in todo:
            if config.policy is not None:
                store.add(*sparse_run(bench, config, dense))
    study = assemble(plan, checkpoint.shape, store, model_path, text_path)
    store.finish(study)
    return plain(study)


def encode(tokenizer: Any, text: str, plan: Plan, path: Path) -> Tensor:
    """The first plan.tokens tokens. Raises ValueError for a shorter text."""
    # Eight characters a token is more than any tokenizer needs on prose; the whole text if not enough.
    ids = tokenizer(text[: 8 * plan.tokens], return_tensors="pt").input_ids[0]
    if len(ids) < plan.tokens:
        ids = tokenizer(text, return_tensors="pt").input_ids[0]
    if len(ids) < plan.tokens:
        raise ValueError(f"text is {path}: {len(ids)} tokens; {plan.tokens} are needed (--tokens)")
    return ids[: plan.tokens]


def check(plan: Plan, shape: Shape) -> None:
    """What only the model can tell about a plan. Raises ValueError."""
    total = plan.tokens + plan.steps
    if shape.context is not None and total > shape.context:
        raise ValueError(
            f"tokens is {plan.tokens} with {plan.steps} to continue; the model's context is {shape.context}"
        )
    plan.reduced(shape)


def dense_run(bench: Bench) -> dict[str, Any]:
    """Dense over the text: perplexity, the caches to continue from, and dense's own continuation."""
    plan = bench.plan
    book = Ledger()
    start = time.perf_counter()
    session = Session.new(bench.shape, None, tokens=plan.tokens + plan.steps, prompt=plan.scored_from)
    watched(session, book, bench, DENSE.label)
    with book.phase("pass"):
        logits = forward(bench.model, bench.ids, session, "prefill", keep=kept(plan))
    seconds = time.perf_counter() - start
    bench.logits, bench.first, bench.prompt = logits[:-1], logits[-1], session
    nll = loss(bench.logits, targets(bench))
    continued = continuation(bench, session.branch(), book, None)
    return row(bench, DENSE, nll=nll, dense_nll=nll, kl=(0.0, 0.0), layers=[], seconds=seconds, book=book,
               continued=continued)  # fmt: skip


def sparse_run(bench: Bench, config: Config, dense: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One policy over the text: every row of every layer selects. Returns the run and its timeline."""
    plan, shape = bench.plan, bench.shape
    assert bench.logits is not None and bench.prompt is not None and config.policy is not None
    book, watch = Ledger(), Watch(timeline_layers=timeline_layers(shape), every=max(1, plan.tokens // 64))
    start = time.perf_counter()
    session = Session.new(shape, config.policy, tokens=plan.tokens, prompt=plan.scored_from)
    watched(session, book, bench, config.label, watch)
    with book.phase("pass"):
        logits = forward(bench.model, bench.ids, session, "rows", keep=kept(plan))[:-1]
    seconds = time.perf_counter() - start
    nll = loss(logits, targets(bench))
    continued = continuation(bench, bench.prompt.branch(config.policy), book, dense["continuation"])
    run = row(bench, config, nll=nll, dense_nll=dense["nll"], kl=divergence(bench.logits, logits),
              layers=[asdict(n) for n in watch.layers], seconds=seconds, book=book, continued=continued)  # fmt: skip
    timeline = [
        {"run": config.name, "layer": layer, "queries": [q for q, _ in rows], "positions": [p for _, p in rows]}
        for layer, rows in watch.timeline.items()
        if config.family in ("exact", "lowrank") and config.policy.k == plan.budget
    ]
    return run, timeline


def kept(plan: Plan) -> int:
    """Logits are needed from the token before the first scored one."""
    return plan.tokens - plan.scored_from + 1


def targets(bench: Bench) -> Tensor:
    return bench.ids[bench.plan.scored_from :]


def timeline_layers(shape: Shape) -> tuple[int, ...]:
    """An early and a late layer."""
    return tuple(sorted({shape.layers // 10, shape.layers * 7 // 10}))


def watched(session: Session, book: Ledger, bench: Bench, label: str, watch: Watch | None = None) -> None:
    """Observe the operators of each layer, tell the progress, and look at what was selected."""
    session.around = lambda: observe(book)

    def look(seen: Seen) -> None:
        bench.tell(label, (seen.layer + 1) / bench.shape.layers)
        if watch is not None:
            watch(seen)

    session.watch = look


def continuation(bench: Bench, session: Session, book: Ledger, dense: dict[str, Any] | None) -> dict[str, Any]:
    """Greedy tokens after the whole text, from the dense prompt's caches, by the session's policy."""
    assert bench.first is not None
    way = "dense" if session.policy is None else "step"
    session.watch = None
    session.around = lambda: observe(book)
    tokens = [int(bench.first.argmax())]
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


def row(bench: Bench, config: Config, *, nll: float, dense_nll: float, kl: tuple[float, float],
        layers: list[dict[str, Any]], seconds: float, book: Ledger,
        continued: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """A run as study.json holds it."""
    perplexity = float(torch.tensor(nll, dtype=torch.float64).exp())
    stages = book.as_dicts()
    steps = max(1, bench.plan.steps - 1)
    reading = sum(s["bytes_min"] for s in stages if s["phase"] == "decode" and s["stage"] != "around")
    masses = [n["mass_mean"] for n in layers]
    overlaps = [n["overlap"] for n in layers if n["overlap"] is not None]
    dense = config.policy is None
    return {
        "name": config.name, "label": config.label, "family": config.family,
        "k": None if dense else min(config.policy.k, bench.plan.tokens),  # type: ignore[union-attr]
        "perplexity": perplexity, "nll": nll,
        "delta": float(torch.tensor(nll - dense_nll, dtype=torch.float64).expm1()),
        "kl_mean": kl[0], "kl_worst": kl[1],
        "mass_mean": 1.0 if dense else sum(masses) / len(masses),
        "mass_worst": 1.0 if dense else min(n["mass_worst"] for n in layers),
        "overlap": sum(overlaps) / len(overlaps) if overlaps else None,
        "bytes_per_token": reading // steps, "bytes_dense": None,
        "seconds": seconds, "layers": layers, "stages": stages, "continuation": continued,
    }  # fmt: skip
