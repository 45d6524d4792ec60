"""Ledger: adds up what observed operator calls cost.

ledger = Ledger()
with tilesieve.observe(ledger), ledger.phase("decode"):
    ...
ledger.rows()
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tilesieve.cost import ZERO, Cost
from tilesieve.ledger.rows import Row, total
from tilesieve.ops import catalogue


class _Op(Protocol):
    @property
    def name(self) -> str: ...


class Call(Protocol):
    """What an observer is told: `tilesieve.ops.run.Call` without importing it, or torch."""

    @property
    def op(self) -> _Op: ...
    @property
    def seconds(self) -> float: ...
    def sizes(self) -> dict[str, int]: ...


class Ledger:
    """An observer for `tilesieve.observe`: one row per phase and operator.

    Counts that depend on the data are read at the call, which waits for a GPU: observe a run to know its costs,
    not to time it. seconds is host time (`tilesieve.ops.run.Call`).
    """

    def __init__(self) -> None:
        self._phase = ""
        self._sums: dict[tuple[str, str], tuple[int, float, Cost]] = {}

    def __call__(self, call: Call) -> None:
        name = call.op.name
        cost = catalogue.cost(name)(**call.sizes())
        calls, seconds, before = self._sums.get((self._phase, name), (0, 0.0, ZERO))
        self._sums[self._phase, name] = (calls + 1, seconds + call.seconds, before + cost)

    @contextmanager
    def phase(self, label: str) -> Iterator[None]:
        """Calls inside the block are rows of their own, under this label ("prefill", "decode")."""
        outer, self._phase = self._phase, label
        try:
            yield
        finally:
            self._phase = outer

    def rows(self) -> tuple[Row, ...]:
        """Phases in the order they first ran, operators in flow order."""
        stages = {entry.name: entry.stage for entry in catalogue.CATALOGUE}
        flow = list(stages)
        phases = list(dict.fromkeys(phase for phase, _ in self._sums))
        keys = sorted(self._sums, key=lambda key: (phases.index(key[0]), flow.index(key[1])))
        found = []
        for phase, op in keys:
            calls, seconds, cost = self._sums[phase, op]
            found.append(Row(op, stages[op], calls, cost, seconds, phase))
        return tuple(found)

    def total(self) -> Cost:
        return total(self.rows())

    def as_dicts(self) -> list[dict[str, Any]]:
        """rows() for JSON: phase, stage, op, calls, seconds, flops, bytes_min."""
        return [row.as_dict() for row in self.rows()]
