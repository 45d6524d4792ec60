"""What topk must pick, on plain lists, and its selections as plain lists."""

import math

import torch

from tilesieve.ops.topk.op import topk

INF, NAN = math.inf, math.nan


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def best(row, k, start=0, end=None, first=0, last=0):
    """What the contract says, on a list of floats."""
    end = len(row) if end is None else min(end, len(row))
    start = max(start, 0)
    inside = list(range(start, end))
    forced = {c for n, c in enumerate(inside) if n < first or n >= len(inside) - last}
    free = [c for c in inside if c not in forced and not math.isnan(row[c]) and row[c] != -INF]
    free.sort(key=lambda c: (-row[c], c))
    return sorted([*forced, *free[: k - len(forced)]])


def padded(picks, k):
    return [*picks, *[-1] * (k - len(picks))]


def picks(scores, impl=None, **more):
    """The selection of one row or a list of rows, as lists without their tails."""
    scores = torch.as_tensor(scores, dtype=torch.float32)
    got = topk(scores[None] if scores.dim() == 1 else scores, impl=impl, **more)
    index, count = got.index.flatten(0, -2).tolist(), got.count.flatten().tolist()
    for row, n in zip(index, count, strict=True):
        assert row[n:] == [-1] * (len(row) - n)
        assert row[:n] == sorted(set(row[:n]))
    lists = [row[:n] for row, n in zip(index, count, strict=True)]
    return lists[0] if scores.dim() == 1 else lists
