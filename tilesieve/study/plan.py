"""What a study runs: the model, the text, and a named sweep of policies."""

from dataclasses import dataclass
from pathlib import Path

from tilesieve.hf.shape import Shape
from tilesieve.policies import SCORE_FORMATS, Policy, Scoring, window

# Ways to reduce a key.
REDUCED = ("prefix", "pairs_slow", "pairs_fast", "pca")


@dataclass(frozen=True)
class Config:
    """One run of the sweep. family: dense, exact, lowrank, window or full."""

    name: str
    label: str
    family: str
    policy: Policy | None


DENSE = Config("dense", "dense", "dense", None)


@dataclass(frozen=True)
class Plan:
    """model and text None mean the defaults; perplexity is over the second half of `tokens`.

    scoring, d_score, score_format: the reduced keys of the low-rank run. None: the slow rotary pairs, or PCA where a
    model has no half-split rope over whole keys; d_score None is half of a key. full: all sections, at full length.
    """

    model: Path | None = None
    text: Path | None = None
    tokens: int = 4096
    steps: int = 16
    budgets: tuple[int, ...] = (64, 256, 512)
    budget: int = 256
    scoring: str | None = None
    d_score: int | None = None
    score_format: str = "score_int8"
    full: bool = False

    def __post_init__(self) -> None:
        if self.tokens < 32:
            raise ValueError(f"tokens is {self.tokens}; allowed: an integer >= 32")
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; allowed: an integer >= 1")
        if self.scoring is not None and self.scoring not in REDUCED:
            raise ValueError(f"scoring is {self.scoring!r}; allowed: {', '.join(REDUCED)}")
        if self.score_format not in SCORE_FORMATS:
            raise ValueError(f"score_format is {self.score_format!r}; allowed: {', '.join(SCORE_FORMATS)}")
        if not self.budgets:
            raise ValueError("budgets is empty; allowed: one k or more")
        if len(set(self.budgets)) != len(self.budgets):
            raise ValueError(f"budgets is {self.budgets}; allowed: each k once")
        # Refuses bad values now, before a model is read; what depends on the model is asked later.
        width = max(64, self.d_score or 0)
        self.sweep(Shape("any", 1, 1, 1, width, None, width))

    @property
    def scored_from(self) -> int:
        return self.tokens // 2

    def reduced(self, shape: Shape) -> Scoring:
        """The low-rank run's scoring for this model. Raises ValueError for one that the model cannot have."""
        width = shape.head_dim
        columns = max(2, width // 4 * 2) if self.d_score is None else self.d_score
        kind = self.scoring or ("pairs_slow" if shape.rotary == width and columns % 2 == 0 else "pca")
        if columns > width:
            raise ValueError(f"d_score is {columns}; the model's keys have {width} dimensions")
        if kind.startswith("pairs") and shape.rotary < columns:
            raise ValueError(f"scoring is {kind!r}; {shape.name} keys have {shape.rotary} dimensions of a half-split "
                             f"rope, {columns} are needed; allowed: prefix, pca")  # fmt: skip
        return Scoring(kind, columns, self.score_format)

    def ends(self, k: int) -> tuple[int, int]:
        """How many positions at both ends of the context are always kept, inside k.

        Reduced scores are blind where the reduction is (slow pairs hardly tell near positions apart): without
        the ends they lose more than a window does (notes/2026-11-30-reduced-scores.md).
        """
        return min(4, k // 8), max(1, k // 8)

    def scaled(self, tokens: int) -> int:
        """The one budget on a shorter text, in proportion."""
        return max(min(8, self.budget), self.budget * tokens // self.tokens)

    def drawn(self, config: Config) -> bool:
        """Whether the run's selections are recorded: exact and low-rank at the one budget."""
        return config.family in ("exact", "lowrank") and config.policy is not None and config.policy.k == self.budget

    def sweep(self, shape: Shape) -> tuple[Config, ...]:
        """Exact shared top-k at each budget; reduced scores and a window at one; everything selected."""
        s = self.reduced(shape)
        exact = [Config(f"exact-{k}", f"shared top-k {k}", "exact", Policy(k=k)) for k in self.budgets]
        first, last = self.ends(self.budget)
        words = {"pairs_slow": "slow pairs", "pairs_fast": "fast pairs"}.get(s.kind, s.kind)
        by = f"{words} d{s.columns} {s.format.removeprefix('score_')}"
        reduced = Config(
            f"lowrank-{self.budget}", f"{by} + ends {self.budget}", "lowrank",
            Policy(k=self.budget, scoring=s, first=first, last=last),
        )  # fmt: skip
        recent = Config(f"window-{self.budget}", f"4 sinks + window {self.budget}", "window", window(self.budget))
        full = Config("full", "everything selected", "full", Policy(k=self.tokens + self.steps))
        return (*exact, reduced, recent, full)
