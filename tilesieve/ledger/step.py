"""One decode step of a model, dense or sparse, written down as rows.

The selection and attention rows come from the operators' own cost.py, the rest from dense.py. Counts that depend on
data enter from here: each of the `batch` sequences sees `context` positions of its own, all pages are there, every
pick is valid, and picks of heads that select for themselves coincide nowhere (the most that can be read).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tilesieve.cost import Cost
from tilesieve.ledger import dense
from tilesieve.ledger.models import Model
from tilesieve.ledger.rows import Row
from tilesieve.ops import catalogue
from tilesieve.policies import SCORE_FORMATS, SHARES

# (format, dtype of its numbers, bytes of one, bytes of a token's scale)
_CACHES = (("kv_bf16", "bfloat16", 2), ("kv_fp16", "float16", 2), ("kv_fp32", "float32", 4))
_SCORES = (
    ("score_fp32", "float32", 4, 0),
    ("score_bf16", "bfloat16", 2, 0),
    ("score_int8", "int8", 1, 4),
    ("score_fp8", "float8_e4m3fn", 1, 4),
)


@dataclass(frozen=True)
class Step:
    """context: positions a row sees, the new token included. k None is dense.

    share: one selection per "layer", "kv_head" or "q_head". cache: format of keys and values. packed: selected rows
    are gathered into a buffer first, and attention reads that; not with "q_head". basis: reduced keys are projected
    (PCA), not taken by dimension.
    """

    context: int = 32768
    batch: int = 1
    k: int | None = None
    d_score: int = 32
    score_format: str = "score_int8"
    share: str = "layer"
    cache: str = "kv_bf16"
    packed: bool = False
    basis: bool = False
    page_size: int = 64

    def __post_init__(self) -> None:
        for name in ("context", "batch", "d_score", "page_size", *(("k",) if self.k is not None else ())):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; allowed: an integer >= 1")
        for name, allowed in (("score_format", SCORE_FORMATS), ("share", SHARES), ("cache", [c[0] for c in _CACHES])):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if self.packed and self.share == "q_head":
            raise ValueError("packed is True with share 'q_head'; allowed: layer, kv_head, which gather packs by")

    @property
    def cache_dtype(self) -> str:
        return next(dtype for name, dtype, _ in _CACHES if name == self.cache)

    @property
    def cache_itemsize(self) -> int:
        return next(size for name, _, size in _CACHES if name == self.cache)

    @property
    def score_dtype(self) -> str:
        return next(dtype for name, dtype, _, _ in _SCORES if name == self.score_format)

    @property
    def score_itemsize(self) -> int:
        return next(size for name, _, size, _ in _SCORES if name == self.score_format)

    @property
    def scaled(self) -> int:
        """1 where every reduced key has a scale."""
        return int(next(scale for name, _, _, scale in _SCORES if name == self.score_format) > 0)

    @property
    def score_bytes(self) -> int:
        """Bytes of one reduced key of one kv head."""
        return self.d_score * self.score_itemsize + 4 * self.scaled

    @property
    def pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.context // self.page_size)


def decode_step(model: Model, step: Step) -> tuple[Row, ...]:
    """The rows of one decode step in flow order; each stands for all layers.

    Raises ValueError when d_score is more than the model's head dimension.
    """
    if step.k is not None and step.d_score > model.head_dim:
        raise ValueError(f"d_score is {step.d_score}; allowed: 1 to {model.head_dim}, {model.name}'s head dimension")
    rows, layers = step.batch, model.layers
    before = [
        _around("norm", dense.norm(rows, model.hidden), layers),
        _around(
            "qkv projection",
            dense.linear(rows, model.hidden, model.q_width + 2 * model.kv_width, bias=model.qkv_bias),
            layers,
        ),
        *_query_norm(model, rows),
        _around("rope of queries", dense.rope(rows, model.heads, model.head_dim), layers),
    ]
    after = [
        _around("out projection", dense.linear(rows, model.q_width, model.hidden, bias=model.out_bias), layers),
        _around("residual", dense.residual(rows, model.hidden), 2 * layers),
        _around("norm of the MLP", dense.norm(rows, model.hidden), layers),
        _around("gate and up", dense.linear(rows, model.hidden, 2 * model.intermediate), layers),
        _around("swiglu", dense.swiglu(rows, model.intermediate), layers),
        _around("down", dense.linear(rows, model.intermediate, model.hidden), layers),
    ]
    return (
        _around("embedding", dense.embedding(rows, model.hidden), 1),
        *before,
        *attention(model, step),
        *after,
        _around("last norm", dense.norm(rows, model.hidden), 1),
        _around("head", dense.head(rows, model.hidden, model.vocab), 1),
    )


def _around(name: str, cost: Cost, calls: int) -> Row:
    return Row(name, "around", calls, cost * calls)


def _query_norm(model: Model, rows: int) -> Iterator[Row]:
    if model.qk_norm:
        cost = dense.norm(rows * model.heads, model.head_dim, weights=model.head_dim)
        yield _around("norm of queries", cost, model.layers)


def attention(model: Model, step: Step) -> tuple[Row, ...]:
    """The rows of the operators, all layers: append, [score, select, plan, [gather]], attend, merge."""
    stages = {entry.name: entry.stage for entry in catalogue.CATALOGUE}

    def row(name: str, sizes: dict[str, int], dtype: str = "bfloat16") -> Row:
        cost = catalogue.cost(name)(**sizes)
        return Row(name, stages[name], model.layers, cost * model.layers, dtype=dtype)

    rows, heads, groups = step.batch, model.heads, model.kv_heads
    shape = {"rows": rows, "heads": heads, "kv_heads": groups, "width": model.head_dim}
    scan = {"entries": rows * step.pages, "sequences": rows}
    append = {"rows": rows, "heads": groups, "width": model.head_dim}
    found = [
        row("kv_append", append | {"cache_itemsize": step.cache_itemsize, "norm": int(model.qk_norm),
                                   "rotary": model.head_dim})
    ]  # fmt: skip
    merge = row("merge", {"parts": 1, "rows": rows, "heads": heads, "value_width": model.head_dim, "out_itemsize": 2})
    if step.k is None:
        seen = rows * step.context
        sizes = shape | scan | {"visited": heads * seen, "distinct": groups * seen, "itemsize": step.cache_itemsize}
        return (*found, row("gqa_decode", sizes, step.cache_dtype), merge)

    reduced = {"columns": step.d_score, "cache_itemsize": step.score_itemsize, "quantised": step.scaled,
               "basis": int(step.basis)}  # fmt: skip
    seen = rows * step.context
    sets = {"layer": 1, "kv_head": groups, "q_head": heads}[step.share]
    picked = min(step.k, step.context)
    # Of one kv head, at most: q heads that select for themselves may all pick differently.
    union = min(step.context, picked * heads // groups) if step.share == "q_head" else picked
    found += [
        row("score_append", append | reduced | {"mean": int(step.basis)}),
        row("lowrank", shape | scan | reduced | {"length": step.context, "scanned": seen, "keys": seen},
            step.score_dtype),
        row("topk", {"rows": rows, "picks": step.k, "scanned": heads * seen, "width": step.context, "heads": heads,
                     "sets": sets, "mass": int(sets < heads), "ends": 1}),
        row("slots", {"rows": rows, "picks": step.k, "sets": sets, "listed": rows * sets * picked,
                      "pages": rows * min(step.pages, sets * picked), "sequences": rows}),
    ]  # fmt: skip
    lists = {"picks": step.k, "lists": sets, "distinct": rows * groups * union, "itemsize": step.cache_itemsize}
    if step.packed:
        found.append(row("gather", append | lists | {"picked": rows * sets * picked}))
        lists["lists"] = 1  # the buffer is a cache whose slots are 0..k-1 of each row, for every kv head
    sizes = shape | lists | {"visited": rows * heads * picked}
    return (*found, row("sparse_gqa", sizes, step.cache_dtype), merge)
