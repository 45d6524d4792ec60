"""Which layer and which head loses attention mass."""

from collections.abc import Sequence

from tilesieve.report import words
from tilesieve.report.columns import OVERLAP
from tilesieve.report.figure import Choice, Panel, counted, layout, line
from tilesieve.report.frame import Group, Section, aside
from tilesieve.report.heatmap import layers_by_heads
from tilesieve.report.palette import Look, run_looks
from tilesieve.report.tables import by_layer
from tilesieve.report.tidy import Json

KEYS = (
    ("mass_mean", "Mean mass kept", "mass, 0 to 1", "Dense attention weight on the selected positions, mean."),
    ("mass_worst", "Worst mass kept", "mass, 0 to 1", "The same for the query that fares worst in each layer."),
    ("overlap", "Overlap with exact top-k", "overlap, 0 to 1", f"{OVERLAP[:1].upper()}{OVERLAP[1:]}."),
    ("top1", "Strongest position kept", "share, 0 to 1",
     "Share of heads and queries whose selection holds the position that dense reads most."),
)  # fmt: skip


def section(study: Json) -> Section:
    """Lines by layer for all runs, then layer by head for one run at a time."""
    runs = study["runs"]
    note = "A layer that dips is where the selection misses what dense reads."
    heads = by_head("plot-mass-heads", [(run["label"], run["name"], run["layers"], "layers") for run in runs])
    looks = run_looks(runs)
    panels = _by_layer(runs, looks)
    measured = aside(f"Measured over {words.looked(study['meta']['rows_looked'])}.") if panels or heads else ""
    return Section("mass", "Attention mass kept by layer", note, (
        measured, Group(panels, tuple(looks.values())), Group(heads, pick="run"),
    ))  # fmt: skip


def _by_layer(runs: list[Json], looks: dict[str, Look]) -> list[Panel]:
    """A line per run, a panel per number."""
    panels = []
    for key, title, axis, caption in KEYS:
        drawn = [run for run in runs if any(layer[key] is not None for layer in run["layers"])]
        if not drawn:
            continue
        hover = "layer %{x}: %{y:.4f}"
        traces = [
            line(looks[run["name"]], [layer["layer"] for layer in run["layers"]],
                 [layer[key] for layer in run["layers"]], hover, size=5)
            for run in drawn
        ]  # fmt: skip
        ids = [layer["layer"] for run in drawn for layer in run["layers"]]
        figure = {"data": traces, "layout": layout("layer", axis, xaxis=counted(ids))}
        panels.append(Panel(f"plot-{key.replace('_', '-')}", title, caption, figure, by_layer(runs, key, title)))
    return panels


def by_head(id_: str, items: Sequence[tuple[str, str, list[Json], str]]) -> list[Panel]:
    """Mass kept, layer by head; items are (label, name of the run or "", layers, path of the layers)."""
    choices = []
    for label, run, layers, path in items:
        made = layers_by_heads(
            layers, "heads", lambda j, h, path=path: f"{path}.{j}.heads.{h}",  # type: ignore[misc]
            f"Mass kept by layer and head, {label}", show=lambda value: words.fixed(value, 4), run=run,
        )  # fmt: skip
        if made:
            choices.append(Choice(label, *made))
    if not choices:
        return []
    # One scale for all: otherwise leafing through the runs would repaint a good run in the colours of a bad one.
    known = [v for c in choices for row in c.figure["data"][0]["z"] for v in row if v is not None]
    for choice in choices:
        choice.figure["data"][0] |= {"zmin": min(known, default=0), "zmax": max(max(known, default=1), 1)}
    caption = "Dense attention weight that the selection keeps, mean over the queries. Dark: lost."
    title = "Mass kept by layer and head"
    return [Panel(id_, title, caption, choices[0].figure, choices=tuple(choices), wide=True)]
