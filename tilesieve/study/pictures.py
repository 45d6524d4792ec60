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


def _recent(look: Json) -> bool:
    return _least(look, "near", 0.9)


def _everywhere(look: Json) -> bool:
    changing = _most(look, "stay", 0.5) and _most(look, "drift", 0.5)
    return changing and _most(look, "near", 0.35) and _least(look, "spread", 0.5)


def _stuck(look: Json) -> bool:
    return _most(look, "near", 0.5) and _least(look, "stay", 0.9) and look["stay"] > (look["drift"] or 0.0)


def _drifts(look: Json) -> bool:
    return _most(look, "near", 0.5) and _least(look, "drift", 0.5) and look["drift"] > (look["stay"] or 0.0)


PICTURES = (
    Picture(
        "only-recent", "It only looks at the recent past", _recent,
        "at least 0.9 of the picks are recent: in the last sixteenth, or the last k",
        "a window would do for these layers; if the task needs more, score in dimensions that see far (slow pairs)",
    ),
    Picture(
        "global", "It retrieves from everywhere", _everywhere,
        "at most 0.35 of the picks are recent, half of the others stand apart, and neither stay nor move along",
        "k is large against what these layers know to look for, or scores are flat: a larger k, or leave them dense",
    ),
    Picture(
        "drifting", "Its choice drifts with the query", _drifts,
        "half of the picks are not recent, half of those keep their distance to the query, more than keep their place",
        "look for an offset in positions or a rope applied twice or not at all in the scores",
    ),
    Picture(
        "stuck", "Its choice is stuck", _stuck,
        "half of the picks are not recent, and 0.9 of all keep their place as the query moves, not their distance",
        "reselect more often; look whether the scores see the query at all",
    ),
)  # fmt: skip
MOST = "in more than half of the layers and heads recorded, "


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
        found.append(
            Finding(picture.id, picture.title, value, 0.5, MOST + picture.trigger, said, picture.remedy, "timeline")
        )
    return found


def leaves_out(look: Json) -> bool:
    """Whether the last query's set is smaller than what it sees."""
    return bool(look["queries"]) and look["count"][-1] < look["queries"][-1] + 1
