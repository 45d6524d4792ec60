"""A compact buffer of the positions picked last: how many of the next picks would it hold?"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilesieve.study.overlaps import ROWS, stretch
from tilesieve.study.trace import Trace


def hot(trace: Trace, sizes: Sequence[float]) -> list[dict[str, Any]]:
    """[{"size": positions, "hit": share}] of a buffer per layer and head; sizes in multiples of k, the largest set.

    The buffer keeps the positions used last (of one query's picks the higher counts as later). hit: share of a query's
    picks that are there before it, mean over layers, heads and the second half of the longest stretch of
    consecutive queries; the first half fills the buffer. Empty where no two queries are consecutive. The query's
    own position is new, so a set that holds it misses at least once.
    """
    if not sizes or min(sizes) <= 0:
        raise ValueError(f"sizes is {list(sizes)}; allowed: multiples of k, > 0")
    places = [max(1, round(size * trace.k)) for size in sizes]
    found = []
    for picks in trace.picks.values():
        queries = stretch(sorted(picks))[-ROWS:]
        if len(queries) > 1:
            found += hits([picks[q] for q in queries], places)[len(queries) // 2 :]
    shares = torch.tensor([share for share in found if share is not None], dtype=torch.float64)
    if not len(shares):
        return []
    return [{"size": place, "hit": float(hit)} for place, hit in zip(places, shares.mean(0), strict=True)]


def hits(rows: list[Tensor], places: list[int]) -> list[list[float] | None]:
    """Per row and buffer size, the share of the row's positions that the buffer holds before it; None without any."""
    # One list serves all sizes: a buffer of n places holds its first n.
    recent = rows[0].new_empty(0)
    found: list[list[float] | None] = []
    for row in rows:
        held = torch.isin(recent, row)
        before = torch.cat([held.new_zeros(1), held]).cumsum(0)
        found.append([float(before[min(n, len(recent))]) / len(row) for n in places] if len(row) else None)
        recent = torch.cat([row.flip(0), recent[~held]])[: max(places)]
    return found
