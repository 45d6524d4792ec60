"""Every operator by name, in flow order, loaded when it is asked for. No torch is imported here."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from tilesieve.cost import Cost


class Entry(NamedTuple):
    name: str
    stage: str
    summary: str


CATALOGUE = (
    Entry("kv_append", "around", "norm, rope and write keys and values into a paged cache"),
    Entry("score_append", "around", "reduce, quantise and write keys into a paged score cache"),
    Entry("gate_bias_update", "around", "the bias of each expert one step towards even loads"),
    Entry("lowrank", "score", "scores of queries against reduced keys"),
    Entry("gate", "select", "the k best experts of each token, by score, bias and groups, and their weights"),
    Entry("topk", "select", "the k best positions of a score row, exactly"),
    Entry("group_rows", "plan", "picks of experts as rows ordered by expert, with tiles over them"),
    Entry("slots", "plan", "positions of a selection as places in the page pool"),
    Entry("gather", "gather", "keys and values of selected slots into packed buffers"),
    Entry("permute", "gather", "token rows ordered by expert"),
    Entry("grouped_gemm", "compute", "rows ordered by expert, each times its expert's matrix"),
    Entry("swiglu_mlp", "compute", "gate and up from one read, SwiGLU, down"),
    Entry("experts", "compute", "the MLP of each row's expert, rows gathered in the load"),
    Entry("gqa_decode", "compute", "dense attention of single query rows over a paged cache"),
    Entry("sparse_gqa", "compute", "attention of single query rows over selected slots"),
    Entry("sparse_gqa_prefill", "compute", "attention of many query rows, each over its own selection"),
    Entry("merge", "combine", "partial attentions into one, by log-sum-exp"),
    Entry("unpermute", "combine", "rows ordered by expert back to their tokens, with a backward"),
    Entry("combine", "combine", "expert rows back to their tokens"),
)
NAMES = tuple(entry.name for entry in CATALOGUE)


def _module(name: str, question: str) -> Any:
    if name not in NAMES:
        raise ValueError(f"operator is {name!r}; known: {', '.join(NAMES)}")
    return import_module(f"tilesieve.ops.{name}.{question}")


def operator(name: str) -> Callable[..., Any]:
    """The public function."""
    return getattr(_module(name, "op"), name)


def record(name: str) -> Any:
    """The `tilesieve.ops.run.Op` behind it."""
    return _module(name, "op").OP


def cost(name: str) -> Callable[..., Cost]:
    """Its cost function: integers in, a Cost out. Imports no torch."""
    return _module(name, "cost").cost


def cases(name: str) -> Any:
    """Its cases module: CASES, alone(), touched()."""
    return _module(name, "cases")
