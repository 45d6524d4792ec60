"""Where a model looked, small enough to draw: one look per layer and head of a trace."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tilesieve.study.trace import SPREAD, Trace

# Cells of a query's row: a screen shows no more.
CELLS = 256


def looks(trace: Trace, most: int = SPREAD) -> Iterator[dict[str, Any]]:
    """One dict per (layer, head), as study.json's timeline holds them. At most `most` queries each, spread evenly.

    near    share of picks within the last positions, the query's own included: a sixteenth of the length, at least
            16, and at least as many as the largest set has, so that a window counts as near
    spread  of the cells before those that the other picks could touch, the share that they do
    stay    share of a query's picks that the query before it (of those drawn) had too
    drift   share of the picks before those last positions that the query drawn before had at the same distance: a set
            that moves along with the query

    Queries without a choice (they see no more than those last positions, or pick all they see) say nothing and are
    left out; None stands where there are no others.
    """
    width = max(1, -(-trace.length // CELLS))
    recent = max(16, trace.length // 16, trace.k)
    for (layer, head), picks in sorted(trace.picks.items()):
        queries = thinned(sorted(picks), most)
        rows = [picks[q] for q in queries]
        chose = [q >= recent and 0 < len(row) <= q for q, row in zip(queries, rows, strict=True)]
        shapes = [shape_of(row, q, width, recent) for q, row, c in zip(queries, rows, chose, strict=True) if c]
        pairs = [n for n in range(1, len(rows)) if chose[n] and chose[n - 1]]
        stays = [float(torch.isin(rows[n], rows[n - 1]).double().mean()) for n in pairs]
        drifts = [moved(rows[n - 1], rows[n], queries[n - 1], queries[n], recent) for n in pairs]
        yield {
            "layer": layer, "head": head, "bin": width, "length": trace.length, "queries": queries,
            "cells": [hexed(row, width, trace.length) for row in rows], "count": [len(row) for row in rows],
            "near": mean([near for near, _ in shapes]), "spread": mean([spread for _, spread in shapes]),
            "stay": mean(stays), "drift": mean(drifts),
        }  # fmt: skip


def thinned(queries: list[int], most: int) -> list[int]:
    """At most `most` of them, evenly by position: the tail of a recording is dense, its beginning is not."""
    if len(queries) <= most:
        return queries
    wanted = torch.linspace(queries[0], queries[-1], most)
    have = torch.tensor(queries, dtype=torch.float32)
    return [queries[n] for n in sorted({int((have - w).abs().argmin()) for w in wanted})]


def shape_of(row: Tensor, query: int, width: int, recent: int) -> tuple[float, float]:
    """near and spread of one query that stands at `recent` or later."""
    near = float((row > query - recent).double().mean())
    before = query - recent + 1
    far = row[row < before]
    most = min(-(-before // width), len(far))
    return near, len((far // width).unique()) / most if most else 0.0


def hexed(row: Tensor, width: int, length: int) -> str:
    """Cell b is bit b, the most significant bit of the first digit first."""
    cells = -(-length // (4 * width)) * 4
    bits = torch.zeros(cells, dtype=torch.int64)
    bits[(row // width).long()] = 1
    digits = bits.view(-1, 4) @ torch.tensor([8, 4, 2, 1])
    return "".join(f"{int(d):x}" for d in digits)


def moved(before: Tensor, row: Tensor, query_before: int, query: int, recent: int) -> float | None:
    """Share of the picks beyond `recent` that stand where the earlier query's do, as seen from the query."""
    far = row[row <= query - recent]
    return float(torch.isin(far - (query - query_before), before).double().mean()) if len(far) else None


def mean(values: list[Any]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
