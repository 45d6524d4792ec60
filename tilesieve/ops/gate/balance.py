"""How evenly a routing spreads its rows, and what rounding up to whole blocks adds.

These read their counts back to the host: statistics, not part of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tilesieve.types import Selection


@dataclass(frozen=True)
class Balance:
    """rows: assignments in all; hottest: of the busiest expert; idle: experts without any;
    hottest_over_mean: hottest / (rows / E), 1 when even, at most E / k where no token names an
    expert twice; imbalance: standard deviation of the loads over their mean, 0 when even.

    Without rows both ratios are 0.
    """

    rows: int
    hottest: int
    idle: int
    hottest_over_mean: float
    imbalance: float


@dataclass(frozen=True)
class Padding:
    """rows as they are, padded to whole blocks of every expert, blocks of them, and waste = the
    padding over the rows: 1.5 is 150 %. Without rows the waste is 0."""

    rows: int
    padded: int
    blocks: int
    waste: float


def loads(selection: Selection, experts: int) -> Tensor:
    """Rows of each expert, int64 [E], on the selection's device. Entries past `count` and ids outside
    [0, experts) are not counted. Raises ValueError unless the space is "expert"."""
    if selection.space != "expert":
        raise ValueError(f"selection.space is {selection.space!r}; allowed: 'expert'")
    if experts < 0:
        raise ValueError(f"experts is {experts}; allowed: >= 0")
    index = selection.index
    place = torch.arange(index.shape[-1], device=index.device)
    live = (place < selection.count[..., None]) & (index >= 0) & (index < experts)
    # Integers: the order of the additions does not matter. What does not count goes one past the end.
    target = torch.where(live, index, experts).flatten().long()
    found = torch.zeros(experts + 1, dtype=torch.int64, device=index.device)
    return found.scatter_add_(0, target, torch.ones_like(target))[:experts]


def _counts(loads: Tensor | Sequence[int]) -> list[int]:
    counts = loads.tolist() if isinstance(loads, Tensor) else list(loads)
    if any(not isinstance(count, int) or count < 0 for count in counts):
        raise ValueError(f"loads is {counts}; allowed: integers >= 0, one per expert")
    return counts


def balance(loads: Tensor | Sequence[int]) -> Balance:
    """Of loads [E], as `loads` counts them or any other list of integers >= 0. Raises ValueError."""
    counts = _counts(loads)
    rows = sum(counts)
    if rows == 0:
        return Balance(0, 0, len(counts), 0.0, 0.0)
    mean = rows / len(counts)
    spread = math.sqrt(sum((count - mean) ** 2 for count in counts) / len(counts))
    return Balance(rows, max(counts), counts.count(0), max(counts) * len(counts) / rows, spread / mean)


def padding(loads: Tensor | Sequence[int], block: int) -> Padding:
    """What rounding every expert's rows up to a multiple of `block` adds. An expert without rows
    takes no block. Raises ValueError."""
    counts = _counts(loads)
    if block < 1:
        raise ValueError(f"block is {block}; allowed: >= 1")
    rows, blocks = sum(counts), sum(-(-count // block) for count in counts)
    return Padding(rows, blocks * block, blocks, (blocks * block - rows) / rows if rows else 0.0)
