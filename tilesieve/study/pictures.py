"""The four pictures that a timeline of selected positions can show, told from its numbers."""

from collections.abc import Callable
from typing import NamedTuple

from tilesieve.study.findings import Finding, Json


class Picture(NamedTuple):
    id: str
    title: str
    shows: Callable[[Json], bool]
    trigger: str
    remedy: str


def _least(look: Json, key: str, least: float) -> bool:
    return look[key] is not None and look[key] >= least


def _most(look: Json, key: str, most: float) -> bool:
    return look[key] is not None and look[key] <= most


def _drifts(look: Json) -> bool:
    return _most(look, "near", 0.5) and _least(look, "drift", 0.5) and _most(look, "stay", 0.5)


PICTURES = (
    Picture(
        "only-recent", "It only looks at the recent past", lambda n: _least(n, "near", 0.9),
        "in most layers at least 0.9 of the picks lie in the last sixteenth of the context",
        "a window would do for these layers; if the task needs more, score in dimensions that see far (slow pairs)",
    ),
    Picture(
        "global", "It retrieves from everywhere", lambda n: _most(n, "near", 0.35) and _least(n, "spread", 0.5),
        "in most layers at most 0.35 of the picks are recent and the others touch at least half of the context",
        "k is large against what these layers know to look for, or scores are flat: a larger k, or leave them dense",
    ),
    Picture(
        "drifting", "Its choice drifts with the query", _drifts,
        "in most layers half of the picks are not recent, and half of those keep their distance to the query",
        "look for an offset in positions or a rope applied twice or not at all in the scores",
    ),
    Picture(
        "stuck", "Its choice is stuck", lambda n: _most(n, "near", 0.5) and _least(n, "stay", 0.9),
        "in most layers half of the picks are not recent, and 0.9 of all were picked by the query drawn before, too",
        "reselect more often; look whether the scores see the query at all",
    ),
)  # fmt: skip


def pictures(study: Json) -> list[Finding]:
    """A finding per picture: the share of looks that show it, in the run that shows it most."""
    runs: dict[str, list[Json]] = {}
    for look in study.get("timeline") or []:
        if leaves_out(look):
            runs.setdefault(look["run"], []).append(look)
    found = []
    for picture in PICTURES:
        shares = {name: sum(map(picture.shows, looks)) / len(looks) for name, looks in runs.items()}
        name = max(shares, key=lambda n: shares[n], default=None)
        value = None if name is None else shares[name]
        said = "No selection was recorded, or it left nothing out."
        if name is not None:
            where = sorted({look["layer"] for look in runs[name] if picture.shows(look)})
            said = f"{name}: {len(where)} of {len({look['layer'] for look in runs[name]})} layers"
            said += f" ({', '.join(map(str, where[:12]))}{', …' if len(where) > 12 else ''})." if where else "."
        found.append(Finding(picture.id, picture.title, value, 0.5, picture.trigger, said, picture.remedy, "timeline"))
    return found


def leaves_out(look: Json) -> bool:
    """Whether the last query's set is smaller than what it sees."""
    return bool(look["queries"]) and look["count"][-1] < look["queries"][-1] + 1
