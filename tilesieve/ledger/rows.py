"""A row of the ledger: one kind of work, how often, how long, and what it must cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from tilesieve.cost import ZERO, Cost


@dataclass(frozen=True)
class Row:
    """cost is that of all `calls` together. seconds is measured host time; 0.0 where nothing ran.

    dtype names the numbers that are multiplied: it picks the arithmetic roof.
    """

    op: str
    stage: str
    calls: int
    cost: Cost
    seconds: float = 0.0
    phase: str = ""
    dtype: str = "bfloat16"

    def as_dict(self) -> dict[str, Any]:
        """What JSON files and the report hold."""
        return {
            "phase": self.phase,
            "stage": self.stage,
            "op": self.op,
            "calls": self.calls,
            "seconds": self.seconds,
            "flops": self.cost.flops,
            "bytes_min": self.cost.bytes_min,
        }


def total(rows: Iterable[Row]) -> Cost:
    """Everything the rows cost, one after the other."""
    return reduce(add, (row.cost for row in rows), ZERO)
