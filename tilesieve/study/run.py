"""The study: dense first, then each policy of the sweep, then the sections, on one model and one text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tilesieve.hf.load import Checkpoint, default_model
from tilesieve.hf.shape import Shape
from tilesieve.study.bench import Bench, Tell
from tilesieve.study.describe import assemble, key_of
from tilesieve.study.diagnose import diagnose
from tilesieve.study.plan import DENSE, Plan
from tilesieve.study.sections import sections
from tilesieve.study.store import Store, plain
from tilesieve.study.sweep import dense_run, sparse_run
from tilesieve.study.texts import hamlet, read_text


def run_study(plan: Plan, out: Path, *, fresh: bool = False, tell: Tell = lambda what, done: None,
              command: str = "") -> dict[str, Any]:  # fmt: skip
    """Run what is missing of `plan` in `out`; returns the study as written to out/study.json.

    tell(what, share done) is called as work goes on; `command` is kept as what was asked for. Raises
    ValueError for a model, a text, a value or a folder that cannot be used, before anything long has run.
    """
    model_path = plan.model or default_model()
    text_path = plan.text or hamlet()
    text = read_text(text_path)
    tell("reading", 0.0)
    checkpoint = Checkpoint.open(model_path)
    check(plan, checkpoint.shape)
    ids = encode(checkpoint.tokenizer, text, plan, text_path)
    store = Store(out, key_of(plan, checkpoint.shape, model_path, text), fresh)
    if store.was_full():  # asking for less later takes nothing away
        plan = replace(plan, full=True)
    bench = Bench(plan, checkpoint, ids, tell)
    sweep(bench, store)
    study = assemble(plan, checkpoint.shape, store, model_path, text_path, command)
    study["sections"] = sections(bench, store)
    for section in study["sections"].values():
        study["timeline"] += section.pop("timeline", [])
    store.mark(plan.full)
    study["findings"] = diagnose(study)
    study = plain(study)
    store.finish(study)
    return study


def sweep(bench: Bench, store: Store) -> None:
    """The runs that the store does not hold yet."""
    if DENSE.name not in store.runs():
        store.add(dense_run(bench))
    dense = store.runs()[DENSE.name]
    for config in bench.plan.sweep(bench.shape):
        if config.name not in store.runs():
            store.add(*sparse_run(bench, config, dense, store.folder))


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
