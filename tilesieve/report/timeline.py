"""Selected positions over time: fewer dots without lying, and the sentence they add up to."""

from math import ceil

from tilesieve.report import words
from tilesieve.report.tidy import Json

NEAR = 256


def thinned(look: Json, limit: int) -> list[tuple[int, list[int]]]:
    """Evenly spaced whole queries that hold at most about `limit` picks, at least one query."""
    pairs = list(zip(look["queries"], look["positions"], strict=True))
    total = sum(len(picks) for _, picks in pairs)
    return pairs[:: max(1, ceil(total / limit))]


def nearness(look: Json) -> str:
    """How local the selection is, over all queries and not only those drawn."""
    pairs = zip(look["queries"], look["positions"], strict=True)
    back = [query - pick for query, picks in pairs for pick in picks]
    if not back:
        return "Nothing was selected."
    near = sum(distance < NEAR for distance in back) / len(back)
    return f"{words.percent(near, 0)} of the picks lie within the last {NEAR} positions."
