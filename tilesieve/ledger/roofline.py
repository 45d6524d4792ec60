"""How long a row takes at best on a chip, which roof that is, and where the verdict flips."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tilesieve.ledger.chips import Chip
from tilesieve.ledger.models import Model
from tilesieve.ledger.rows import Row
from tilesieve.ledger.step import Step, decode_step
from tilesieve.policies import k_from_cost

FARTHEST = 1 << 24  # contexts up to here are looked at


@dataclass(frozen=True)
class Floor:
    """Seconds under each roof; the highest one is the floor."""

    arithmetic: float
    memory: float
    launch: float

    @property
    def seconds(self) -> float:
        return max(self.arithmetic, self.memory, self.launch)

    @property
    def roof(self) -> str:
        """ "memory", "arithmetic" or "launch"."""
        named = (("memory", self.memory), ("arithmetic", self.arithmetic), ("launch", self.launch))
        return next(name for name, seconds in named if seconds == self.seconds)


def floor(row: Row, chip: Chip, *, graph: bool = True) -> Floor:
    """flops over the peak of the row's dtype, bytes_min over the bandwidth, launches times the price of one."""
    launch = chip.launch_graph if graph else chip.launch_eager
    return Floor(
        arithmetic=row.cost.flops / chip.peak(row.dtype) if row.cost.flops else 0.0,
        memory=row.cost.bytes_min / chip.bytes_per_second,
        launch=row.cost.launches * launch,
    )


def seconds(rows: Iterable[Row], chip: Chip, *, graph: bool = True) -> float:
    """The floor of rows that run one after the other: the sum of their floors."""
    return sum(floor(row, chip, graph=graph).seconds for row in rows)


def k_limit(model: Model, step: Step) -> int:
    """The largest k at which scoring and attention move no more bytes than dense attention, per kv head.

    A gather into a packed buffer passes the rows three times (read, write, read again), a fused one once.
    """
    return k_from_cost(
        context=step.context,
        width=model.head_dim,
        columns=step.d_score,
        itemsize=step.cache_itemsize,
        score_itemsize=step.score_bytes / step.d_score,
        passes=3.0 if step.packed else 1.0,
    )


def context_flip(model: Model, step: Step, chip: Chip, *, graph: bool = True) -> int | None:
    """The smallest context at which the sparse step's floor is below the dense one's; None up to FARTHEST."""

    def pays(context: int) -> bool:
        sparse = replace(step, context=context)
        times = (seconds(decode_step(model, s), chip, graph=graph) for s in (sparse, replace(sparse, k=None)))
        return next(times) < next(times)

    return first(pays, FARTHEST)


def first(holds: Callable[[int], bool], farthest: int) -> int | None:
    """The n >= 1 from which `holds` is true on, found by doubling and halving; None when farthest is too near.

    `holds` is taken to change once, from false to true.
    """
    high = 1
    while not holds(high):
        if high >= farthest:
            return None
        high = min(2 * high, farthest)
    low = high // 2  # 0, or false there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
