"""The numbers of a run: one list for the summary tables, the hover texts and the explanations in the footer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilesieve.report import words


@dataclass(frozen=True)
class Column:
    """Where the value lies in a run, its title, how it is shown, what it means."""

    field: str
    title: str
    show: Callable[[Any], str]
    means: str


def digits(count: int) -> Callable[[Any], str]:
    """A way to show a number with so many decimals."""
    return lambda value: words.fixed(value, count)


OVERLAP = "share of exact selection's picks, at the same k and with the same kept ends, that this run makes too"
# {rows} stands for the rows that were looked at; only the study knows how many.
QUALITY = (
    Column("k", "budget k", words.whole, "key positions a query may read, shared by the heads of a layer"),
    Column("perplexity", "perplexity", words.fixed, "exp(nll) over the scored tokens; lower is better"),
    Column("nll", "nll", digits(4), "mean negative log-likelihood, nats per token"),
    Column("delta", "Δ dense", words.signed_percent, "relative change of perplexity against dense"),
    Column("kl_mean", "KL mean", digits(4), "KL(dense ‖ run) of the next-token distribution, nats per token"),
    Column("kl_worst", "KL worst", digits(3), "the largest KL of any scored token, nats"),
    Column("worst_at", "worst at", words.whole, "position in the text of the token with the largest KL"),
    Column(
        "mass_mean", "mass mean", digits(4),
        "attention weight that dense puts on the selected positions, 0 to 1, mean over layers, heads and {rows}",
    ),
    Column("mass_worst", "mass worst", digits(4), "the same where it is lowest, over {rows}"),
    Column(
        "overlap", "overlap", digits(4),
        f"{OVERLAP}, 0 to 1, over {{rows}}",
    ),
    Column(
        "top1", "top-1", digits(4),
        "share of layers, heads and rows whose selection holds the position that dense reads most, 0 to 1, "
        "over {rows}",
    ),
    Column("rate", "rate", words.percent, "share of queries that selected anew; the others reused a selection"),
)  # fmt: skip
COST = (
    Column("k", "budget k", words.whole, ""),
    Column(
        "bytes_per_token", "MB / token", words.megabytes,
        "what the attention of one decoded token must read and write at the least (caches, reduced keys, scores, "
        "indices), all layers, at full context; MB = 1e6 bytes",
    ),
    Column("bytes_dense", "dense MB", words.megabytes, "the same for dense attention; MB = 1e6 bytes"),
    Column("share", "share", words.percent, "MB / token over dense MB, worked out on this page"),
    Column("seconds", "seconds", digits(1), "wall time of the scored pass"),
    Column(
        "continuation.diverges_at", "diverges at", words.whole,
        "first token of the continuation, counted from 0, that differs from dense; “same” where none does",
    ),
    Column("continuation.tokens_per_second", "tokens / s", digits(1), "decoded tokens per second, continuation"),
)  # fmt: skip
COLUMNS = QUALITY + COST[1:]
