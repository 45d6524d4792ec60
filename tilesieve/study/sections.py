"""The parts of a study beyond the sweep, in the order of the report."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tilesieve.study.bench import Bench
from tilesieve.study.gather import gather
from tilesieve.study.ladder import ladder
from tilesieve.study.latent import latent
from tilesieve.study.limits import limits
from tilesieve.study.numerics import numerics
from tilesieve.study.retrieval import retrieval
from tilesieve.study.reuse import reuse
from tilesieve.study.sensitivity import sensitivity
from tilesieve.study.store import Store


class Section(NamedTuple):
    """default: also without --full. make(bench, store) runs what the store lacks and returns the section."""

    name: str
    default: bool
    make: Callable[[Bench, Store], dict[str, Any]]


SECTIONS = (
    Section("limits", True, limits),
    Section("ladder", True, ladder),
    Section("retrieval", True, retrieval),
    Section("sensitivity", False, sensitivity),
    Section("reuse", False, reuse),
    Section("gather", True, gather),
    Section("numerics", True, numerics),
    Section("latent", False, latent),
)


def asked(full: bool) -> tuple[Section, ...]:
    return tuple(section for section in SECTIONS if full or section.default)


def sections(bench: Bench, store: Store) -> dict[str, Any]:
    """The sections that the plan asks for, as study.json holds them."""
    return {section.name: section.make(bench, store) for section in asked(bench.plan.full)}
