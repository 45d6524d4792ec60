"""Where it looked: one figure for all runs, layers and heads, moved by sliders."""

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, layout
from tilesieve.report.frame import Group, Section
from tilesieve.report.markup import esc
from tilesieve.report.palette import family_color
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

ENTRIES = (
    Entry("who", "run"), Entry("layer", "layer", words.whole), Entry("head", "head", words.whole),
    Entry("bin", "bin", words.whole), Entry("length", "length", words.whole), Entry("near", "near", digits(4)),
    Entry("spread", "spread", digits(4)), Entry("stay", "stay", digits(4)), Entry("drift", "drift", digits(4)),
)  # fmt: skip


def section(study: Json) -> Section:
    """The controls, the figure that the script fills, and the numbers of all looks."""
    looks = study["timeline"]
    note = "Marked: positions a query selected. The line is the query's own position; everything above is the future."
    if not looks:
        return Section("timeline", "Where it looked", note, ())
    frame = layout("query position", "key position", 460)
    frame["xaxis"]["showgrid"] = frame["yaxis"]["showgrid"] = False
    panel = Panel("plot-timeline", "Where it looked", "", {"data": [], "layout": frame}, _all(study), wide=True)
    return Section("timeline", "Where it looked", note, (_controls(), Group([panel])))


def index(study: Json) -> list[Json]:
    """What the script needs besides the study: which looks can be drawn, and in whose name and colour."""
    by_name, names = {run["name"]: run for run in study["runs"]}, who(study)
    return [
        {
            "at": look["at"], "run": look["run"], "layer": look["layer"], "head": look["head"],
            "label": names.get(look["run"], look["run"]),
            "color": family_color(by_name[look["run"]]["family"] if look["run"] in by_name else "other"),
        }
        for look in study["timeline"]
    ]  # fmt: skip


def who(study: Json) -> dict[str, str]:
    """Names of runs to what readers call them. Rungs of the ladder may have looks too."""
    rungs = study["sections"]["ladder"]["rungs"]
    names = {f"ladder {rung['name']}": f"ladder: {rung['label'] or rung['name']}" for rung in rungs if rung["name"]}
    return names | {run["name"]: run["label"] for run in study["runs"]}


def _controls() -> str:
    slides = "".join(
        f'<div class="row slide" data-slide="{key}"><button type="button" class="step" data-step="-1" '
        f'aria-label="previous {key}">‹</button><label><span>{key} <output></output></span>'
        f'<input type="range" min="0" max="0" value="0" step="1" aria-label="{key}"></label>'
        f'<button type="button" class="step" data-step="1" aria-label="next {key}">›</button></div>'
        for key in ("layer", "head")
    )
    return (
        '<div class="controls" id="scrub"><div class="row"><button type="button" class="step" data-step="-1" '
        'aria-label="previous run">‹</button><label class="pick"><span>run</span><select id="scrub-run"></select>'
        '</label><button type="button" class="step" data-step="1" aria-label="next run">›</button>'
        f'</div>{slides}</div><div id="scrub-facts" class="facts" aria-live="polite"></div>'
    )


def _all(study: Json) -> str:
    """Every look in numbers; the script puts the chosen look's queries above it."""
    names = who(study)
    last = max(look["at"] for look in study["timeline"])
    items: list[Json] = [{entry.key: None for entry in ENTRIES} for _ in range(last + 1)]
    for look in study["timeline"]:
        items[look["at"]] = {**look, "who": names.get(look["run"], look["run"])}
    means = (
        "near: share of picks within the last max(16, length / 16) positions. spread: share of the visible cells "
        "beyond those that the picks touch. stay: share of a query's picks that the query drawn before it had too. "
        "drift: share of the distant picks that the query drawn before had at the same distance. head −1: one set for "
        "all heads. bin: positions per cell."
    )
    table = listing("All looks", "timeline", items, ENTRIES)
    return f'<div id="scrub-table"></div><h4>All looks</h4><p class="note">{esc(means)}</p>{table}'
