"""What a finding is, and how numbers of a study are looked up for one."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """One symptom. It fires where value is past the threshold, above or below it as `trigger` says.

    value None: this study did not measure it; `evidence` then says what would. section: where the numbers are.
    """

    id: str
    title: str
    value: float | None
    threshold: float
    trigger: str
    evidence: str
    remedy: str
    section: str
    below: bool = False

    def as_dict(self) -> Json:
        fired = self.value is not None and (self.value < self.threshold if self.below else self.value > self.threshold)
        found = asdict(self) | {"fired": fired}
        found["try"] = found.pop("remedy")
        return found


def of(study: Json, *path: str) -> Any:
    """A number by its path, or None where a part of the path is missing."""
    here: Any = study
    for key in path:
        here = here.get(key) if isinstance(here, dict) else None
    return here


def named(rows: Iterable[Json] | None, name: str, key: str = "name") -> Json | None:
    return next((row for row in rows or () if row.get(key) == name), None)


def selecting(study: Json) -> list[Json]:
    """Runs that leave something out: what reads every position is dense, however it is written."""
    tokens = of(study, "meta", "tokens") or 0
    return [run for run in study.get("runs") or [] if run.get("k") and run["k"] < tokens]


def worst(rows: Iterable[Json], value: Callable[[Json], float | None]) -> tuple[Json | None, float | None]:
    """The row with the largest value, of those that have one."""
    known = [(row, v) for row in rows if (v := value(row)) is not None]
    return max(known, key=lambda pair: pair[1]) if known else (None, None)


def percent(value: float) -> str:
    return f"{100 * value:+.2f} %"
