"""How alike the sets of a trace are: between layers at one query, and between a query and earlier ones."""

from typing import Any

import torch
from torch import Tensor

from tilesieve.study.trace import SHARED, Trace

LAGS = (1, 2, 4, 8, 16, 32, 64)
# Queries looked at, the last ones of the longest stretch: enough pairs at the largest lag.
ROWS = 256
# Numbers of a mask that are alive at once, bounds the memory of long contexts.
_ALIVE = 1 << 25

Sets = dict[tuple[int, int], dict[int, Tensor]]


def overlaps(trace: Trace) -> dict[str, Any]:
    """As study.json holds them, without the run: k, rows, layer_ids, layers, steps.

    layers[i][j]: share of layer i's picks that layer j makes at the same query too, mean over heads (head h
    with head h; a shared set is every head's) and over the longest stretch of consecutive queries. steps: share of a
    query's picks that the query `lag` before had too; what that one could not see yet counts as missed. A trace
    without two consecutive queries has layers from all its queries and no steps. None: no query to compare.
    """
    ids = sorted({layer for layer, _ in trace.picks})
    heads = sorted({head for _, head in trace.picks if head != SHARED}) or [SHARED]
    every = sorted({query for picks in trace.picks.values() for query in picks})
    queries = stretch(every)
    steady = len(queries) > 1
    queries = (queries if steady else every)[-ROWS:]
    sets, width = packed({(layer, head): trace.picks.get((layer, head), trace.picks.get((layer, SHARED), {}))
                          for layer in ids for head in heads}, queries)  # fmt: skip
    return {
        "k": trace.k,
        "rows": len(queries), "layer_ids": ids,
        "layers": between_layers(sets, ids, heads, queries, width),
        "steps": between_steps(sets, ids, heads, queries, width) if steady else [],
    }  # fmt: skip


def stretch(queries: list[int]) -> list[int]:
    """The longest run of consecutive numbers in an ascending list, the last of equals."""
    best: list[int] = []
    start = 0
    for n in range(1, len(queries) + 1):
        if n == len(queries) or queries[n] != queries[n - 1] + 1:
            if n - start >= len(best):
                best = queries[start:n]
            start = n
    return best


def packed(sets: Sets, queries: list[int]) -> tuple[Sets, int]:
    """These queries' sets with the positions that occur in them numbered from 0, and how many those are."""
    places = [(key, q) for key, rows in sets.items() for q in queries if q in rows]
    rows = [sets[key][q] for key, q in places]
    used, numbers = torch.cat(rows).unique(return_inverse=True)
    kept: Sets = {key: {} for key in sets}
    for (key, q), row in zip(places, numbers.split([len(row) for row in rows]), strict=True):
        kept[key][q] = row
    return kept, max(1, len(used))


def masks(sets: Sets, ids: list[int], head: int, queries: list[int], width: int) -> tuple[Tensor, Tensor]:
    """What was picked, fp32 [layers,queries,width] of 0 and 1, and bool [layers,queries]: which sets there are."""
    rows = [sets[layer, head].get(q) for layer in ids for q in queries]
    there = torch.tensor([row is not None for row in rows])
    count = torch.tensor([0 if row is None else len(row) for row in rows])
    at = torch.arange(len(rows)).repeat_interleave(count) * width
    mask = torch.zeros(len(rows) * width)
    mask[at + torch.cat([row for row in rows if row is not None] or [at])] = 1.0
    return mask.view(len(ids), len(queries), width), there.view(len(ids), len(queries))


def between_layers(sets: Sets, ids: list[int], heads: list[int], queries: list[int], width: int) -> list[list[Any]]:
    total = torch.zeros(len(ids), len(ids), dtype=torch.float64)
    pairs = torch.zeros_like(total)
    step = max(1, _ALIVE // (len(ids) * width))
    for head in heads:
        for low in range(0, len(queries), step):
            mask, there = (t.transpose(0, 1) for t in masks(sets, ids, head, queries[low : low + step], width))
            share, valid = shares(mask @ mask.transpose(1, 2), there)
            total += share.sum(0)
            pairs += valid.sum(0)
    return [[float(t / n) if n else None for t, n in zip(*row, strict=True)] for row in zip(total, pairs, strict=True)]


def between_steps(sets: Sets, ids: list[int], heads: list[int], queries: list[int],
                  width: int) -> list[dict[str, Any]]:  # fmt: skip
    lags = [lag for lag in LAGS if lag < len(queries)]
    total = torch.zeros(len(lags), len(ids), dtype=torch.float64)
    pairs = torch.zeros_like(total)
    step = max(1, _ALIVE // (len(queries) * width))
    for head in heads:
        for low in range(0, len(ids), step):
            mask, there = masks(sets, ids[low : low + step], head, queries, width)
            share, valid = shares(mask @ mask.transpose(1, 2), there)
            for n, lag in enumerate(lags):
                # Below the diagonal: a query with one before it.
                total[n, low : low + step] += share.diagonal(-lag, 1, 2).sum(-1)
                pairs[n, low : low + step] += valid.diagonal(-lag, 1, 2).sum(-1)
    steps = []
    for lag, sums, counts in zip(lags, total.tolist(), pairs.tolist(), strict=True):
        layers = [s / c if c else None for s, c in zip(sums, counts, strict=True)]
        known = [share for share in layers if share is not None]
        if known:
            steps.append({"lag": lag, "overlap": sum(known) / len(known), "layers": layers})
    return steps


def shares(both: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """fp64 share of row i's picks that row j has, and whether it counts: i has picks and j is there. 0 where not.

    both [...,N,N]: picks in common, each row's own number on the diagonal.
    """
    both = both.double()
    size = both.diagonal(0, -2, -1)[..., None]
    valid = (size > 0) & there[..., None, :]
    return torch.where(valid, both / size.clamp(min=1), 0.0), valid
