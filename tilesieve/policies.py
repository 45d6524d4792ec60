"""Policies: when to select again, how many, by which scores, which layers stay dense. Values only."""

from dataclasses import dataclass, field

SHARES = ("layer", "kv_head", "q_head")
REDUCES = ("mass", "sum", "max")
SCORINGS = ("exact", "prefix", "pairs_slow", "pairs_fast", "pca", "window")
UNSELECTED = ("ignored", "estimated")
SCORE_FORMATS = ("score_fp32", "score_bf16", "score_int8", "score_fp8")


@dataclass(frozen=True)
class Every:
    """Select again every `steps` decode steps; 1 selects at each."""

    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; allowed: an integer >= 1")

    def due(self, age: int, similarity: float, previous: bool) -> bool:
        """age: steps since the selection, 1 at the next token."""
        return age >= self.steps


@dataclass(frozen=True)
class Cosine:
    """Select again when the query has turned since the last step.

    Cosine similarity of adjacent queries >= reuse: keep the set. < reselect: select. Between the
    two: do what was done at the last step, so that a query hovering at one threshold does not
    flip at every token. A set is never kept longer than `longest` steps.
    """

    reuse: float = 0.95
    reselect: float = 0.90
    longest: int = 64

    def __post_init__(self) -> None:
        if not -1.0 <= self.reselect <= self.reuse <= 1.0:
            raise ValueError(f"reselect is {self.reselect} and reuse {self.reuse}; allowed: "
                             "-1 <= reselect <= reuse <= 1")  # fmt: skip
        if self.longest < 1:
            raise ValueError(f"longest is {self.longest}; allowed: an integer >= 1")

    def due(self, age: int, similarity: float, previous: bool) -> bool:
        if age >= self.longest or similarity < self.reselect:
            return True
        # NaN (no earlier query) compares false with everything and selects.
        return previous if similarity < self.reuse else not similarity >= self.reuse


@dataclass(frozen=True)
class Scoring:
    """By what positions are ranked.

    kind    "exact": all D dimensions, read from the key cache itself; "prefix", "pairs_slow",
            "pairs_fast", "pca": `columns` dimensions in a cache of their own; "window": no scores
    columns width C of the reduced keys (None for exact and window)
    format  of the reduced keys
    """

    kind: str = "exact"
    columns: int | None = None
    format: str = "score_fp32"

    def __post_init__(self) -> None:
        if self.kind not in SCORINGS:
            raise ValueError(f"kind is {self.kind!r}; allowed: {', '.join(SCORINGS)}")
        if self.format not in SCORE_FORMATS:
            raise ValueError(f"format is {self.format!r}; allowed: {', '.join(SCORE_FORMATS)}")
        reduced = self.kind not in ("exact", "window")
        if reduced and (self.columns is None or self.columns < 1):
            raise ValueError(f"d_score is {self.columns}; {self.kind!r} scoring needs an integer >= 1")
        if self.kind.startswith("pairs") and self.columns is not None and self.columns % 2:
            raise ValueError(f"d_score is {self.columns}; allowed: an even number, rotary pairs are kept whole")
        if not reduced and self.columns is not None:
            raise ValueError(f"d_score is {self.columns}; {self.kind!r} scoring takes none")


@dataclass(frozen=True)
class Policy:
    """Everything a sparse attention layer decides.

    k            positions per row
    scoring      by what they are ranked
    share        one set per "layer", "kv_head" or "q_head"; reduce: how heads that share vote
    first, last  positions at both ends that are always kept, inside k. last >= 1 keeps the token
                 itself, whatever its score
    local_k, block  the approximate top-k; None is exact
    reselect     Every or Cosine, in decode
    dense_below  rows that see at most this many positions attend to all of them
    dense_layers layers that stay dense
    unselected   "ignored": the softmax is over the selected positions alone. "estimated": what the
                 scores say of the mass of the others goes into the denominator, so that a row whose
                 mass is elsewhere gives a smaller output instead of a confident wrong one
    """

    k: int
    scoring: Scoring = field(default_factory=Scoring)
    share: str = "layer"
    reduce: str = "mass"
    first: int = 0
    last: int = 1
    local_k: int | None = None
    block: int = 4096
    reselect: Every | Cosine = field(default_factory=Every)
    dense_below: int = 0
    dense_layers: frozenset[int] = frozenset()
    unselected: str = "ignored"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k is {self.k}; allowed: an integer >= 1")
        if self.share not in SHARES:
            raise ValueError(f"share is {self.share!r}; allowed: {', '.join(SHARES)}")
        if self.reduce not in REDUCES:
            raise ValueError(f"reduce is {self.reduce!r}; allowed: {', '.join(REDUCES)}")
        if self.first < 0 or self.last < 0 or self.first + self.last > self.k:
            raise ValueError(
                f"first is {self.first} and last {self.last}; allowed: >= 0, together at most k = {self.k}"
            )
        if self.local_k is not None and self.local_k < 1:
            raise ValueError(f"local_k is {self.local_k}; allowed: an integer >= 1, or None for exact")
        if self.block < 1:
            raise ValueError(f"block is {self.block}; allowed: an integer >= 1")
        if self.dense_below < 0:
            raise ValueError(f"dense_below is {self.dense_below}; allowed: an integer >= 0")
        if self.unselected not in UNSELECTED:
            raise ValueError(f"unselected is {self.unselected!r}; allowed: {', '.join(UNSELECTED)}")
        if self.unselected == "estimated" and (self.scoring.kind == "window" or self.reselect != Every(1)):
            raise ValueError("unselected is 'estimated'; allowed only where every row has scores: no window, and "
                             "reselect = Every(1)")  # fmt: skip

    def dense(self, layer: int) -> bool:
        return layer in self.dense_layers


def window(k: int, sinks: int = 4) -> Policy:
    """The static baseline: the first `sinks` positions and the most recent k - sinks."""
    if k <= sinks:
        raise ValueError(f"k is {k}; a window with {sinks} sinks needs more than {sinks}")
    return Policy(k=k, scoring=Scoring("window"), first=sinks, last=k - sinks)


def k_from_cost(*, context: int, width: int, columns: int, value_width: int | None = None, itemsize: float = 1.0,
                score_itemsize: float = 1.0, passes: float = 3.0) -> int:  # fmt: skip
    """The largest k at which sparse decode costs no more than dense, per head; 0 where none does.

        context * columns * score_itemsize + k * (width + value_width) * itemsize * passes
            <= context * (width + value_width) * itemsize

    Bytes by default: `passes` is 3 for a packed gather (read, write, read again), 1 where the
    gather is fused into the attention. With itemsizes of 1 and passes 1.5 it is the usual count of
    multiply-adds with half a pass for the gather. It bounds cost, not quality.
    """
    row = (width + (width if value_width is None else value_width)) * itemsize
    if min(context, width, columns) < 0 or passes <= 0 or row <= 0:
        raise ValueError(f"context {context}, width {width}, columns {columns}, passes {passes}; allowed: >= 0, "
                         "passes and width > 0")  # fmt: skip
    left = context * (row - columns * score_itemsize)
    return max(0, int(left // (row * passes)))
