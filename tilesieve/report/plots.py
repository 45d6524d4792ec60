"""The figures as plain plotly.js values: data and layout. The page's script adds the ink, its HTML the legend."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from tilesieve.report import words
from tilesieve.report.columns import COLUMNS
from tilesieve.report.markup import esc
from tilesieve.report.palette import Look, family_color, family_looks, run_looks, stage_looks
from tilesieve.report.tidy import Json, dense_of
from tilesieve.report.timeline import nearness, thinned

# Dots per timeline. SVG stays quick to about here; whole queries are left out beyond it, never single picks.
DOTS = 9000


@dataclass(frozen=True)
class Panel:
    """One figure: its place in the page, its heading, a sentence below it, and what plotly.js draws."""

    id: str
    title: str
    caption: str
    figure: Json


def against_budget(runs: list[Json]) -> list[Panel]:
    """Perplexity against the budget, and against the bytes that the budget costs."""
    runs = [run for run in runs if run["perplexity"] is not None]
    panels = []
    for id_, title, field, unit, axis in (
        ("plot-budget", "Perplexity against budget", "k", 1, "budget k, positions per query"),
        (
            "plot-bytes",
            "Perplexity against attention bytes",
            "bytes_per_token",
            1e6,
            "attention MB per decoded token",
        ),
    ):
        points = [run for run in runs if run[field] and run["family"] != "dense"]
        dense = dense_of(runs)
        # Dense alone is worth a line against budgets nobody has tried yet, but says nothing about bytes.
        if not points and (not dense or field != "k"):
            continue
        xs = [run[field] / unit for run in points] or [64, 4096]
        traces = [_series(look, points, field, unit) for look in family_looks(points)]
        if dense:
            ends = [min(xs) / 1.25, max(xs) * 1.25]
            traces.insert(0, {
                "type": "scatter", "mode": "lines", "name": "dense", "meta": "dense", "x": ends,
                "y": [dense["perplexity"]] * 2, "line": {"color": family_color("dense"), "dash": "dash", "width": 2},
                "text": [_all_numbers(dense)] * 2, "hovertemplate": "%{text}<extra></extra>",
            })  # fmt: skip
        missing = [run["label"] for run in runs if run not in points and run is not dense]
        note = "Dashed: dense. Lower is better." + (f" Not drawn: {', '.join(missing)}." if missing else "")
        ys = [run["perplexity"] for run in runs]
        layout = _layout(axis, "perplexity", xaxis={"type": "log", **_ticks(xs)})
        if min(ys) > 0 and max(ys) > 4 * min(ys):
            layout["yaxis"] |= {"type": "log", "dtick": "D1"}
            note += " The perplexity axis is logarithmic."
        panels.append(Panel(id_, title, note, {"data": traces, "layout": layout}))
    return panels


def by_layer(runs: list[Json]) -> list[Panel]:
    """A line per run, a panel per number."""
    panels = []
    for key, title, axis, caption in (
        (
            "mass_mean",
            "Mean mass kept",
            "mass, 0 to 1",
            "Dense attention weight on the selected positions, mean.",
        ),
        (
            "mass_worst",
            "Worst mass kept",
            "mass, 0 to 1",
            "The same for the query that fares worst in each layer.",
        ),
        (
            "overlap",
            "Overlap with exact top-k",
            "overlap, 0 to 1",
            "Share of the picks that exact top-k makes too.",
        ),
    ):
        drawn = [run for run in runs if any(layer[key] is not None for layer in run["layers"])]
        looks = run_looks(runs)
        traces = [
            {
                "type": "scatter", "mode": "lines+markers", "name": esc(run["label"]), "meta": run["name"],
                "x": [layer["layer"] for layer in run["layers"]], "y": [layer[key] for layer in run["layers"]],
                "line": {"color": looks[run["name"]].color, "dash": looks[run["name"]].dash, "width": 1.8},
                "marker": {"symbol": looks[run["name"]].symbol, "size": 5},
                "hovertemplate": "%{fullData.name}<br>layer %{x}: %{y:.4f}<extra></extra>",
            }
            for run in drawn
        ]  # fmt: skip
        if traces:
            figure = {"data": traces, "layout": _layout("layer", axis)}
            panels.append(Panel(f"plot-{key.replace('_', '-')}", title, caption, figure))
    return panels


def looked_at(timeline: list[Json], runs: list[Json]) -> list[Panel]:
    """Where a run looked: a dot for every selected key position of every query drawn."""
    panels = []
    by_name = {run["name"]: run for run in runs}
    for at, look in enumerate(timeline):
        run = by_name.get(look["run"], {"label": look["run"], "family": "other"})
        shown = thinned(look, DOTS)
        xs = [query for query, picks in shown for _ in picks]
        ys = [pick for _, picks in shown for pick in picks]
        ends = [min(look["queries"]), max(look["queries"])]
        traces: list[Json] = [
            {"type": "scatter", "mode": "lines", "name": "most recent", "x": ends, "y": ends, "hoverinfo": "skip",
             "line": {"color": family_color("dense"), "width": 1}},
            {"type": "scatter", "mode": "markers", "name": "selected", "x": xs, "y": ys,
             "marker": {"size": 3, "color": family_color(run["family"]), "opacity": 0.75},
             "hovertemplate": "query %{x}<br>looked at %{y}<extra></extra>"},
        ]  # fmt: skip
        drawn = f"Drawn: {len(shown)} of {len(look['queries'])} queries; the line is the query's own position."
        # A little room below zero: the first positions matter too much here to be half hidden by the axis.
        top = max([*ys, ends[1], 1])
        layout = _layout("query position", "key position selected", 400, yaxis={"range": [-0.02 * top, 1.03 * top]})
        figure = {"data": traces, "layout": layout}
        title = f"{run['label']}, layer {look['layer']}"
        panels.append(Panel(f"plot-timeline-{at}", title, f"{nearness(look)} {drawn}", figure))
    return panels


def by_stage(runs: list[Json]) -> list[Panel]:
    """Stacked seconds per run, a panel per phase: a pass and a decode step live on different scales."""
    panels = []
    phases = list(dict.fromkeys(str(stage["phase"]) for run in runs for stage in run["stages"]))
    for at, phase in enumerate(phases):
        rows = [run for run in runs if any(str(stage["phase"]) == phase for stage in run["stages"])]
        traces = []
        for look in stage_looks(runs):
            seconds: dict[str, float] = defaultdict(float)
            ops: dict[str, list[str]] = defaultdict(list)
            for run in rows:
                for stage in run["stages"]:
                    if (str(stage["phase"]), str(stage["stage"])) == (phase, look.key):
                        seconds[run["name"]] += stage["seconds"] or 0
                        ops[run["name"]].append(f"{stage['op']}: {words.fixed(stage['seconds'], 4)} s")
            if seconds:
                traces.append({
                    "type": "bar", "orientation": "h", "name": esc(look.label), "meta": look.key,
                    "y": list(seconds), "x": list(seconds.values()), "marker": {"color": look.color},
                    "text": ["<br>".join(map(esc, ops[name])) for name in seconds], "textposition": "none",
                    "hovertemplate": "%{fullData.name} %{x:.4f} s<br>%{text}<extra></extra>",
                })  # fmt: skip
        names = [run["name"] for run in rows]
        layout = _layout("seconds", "", 90 + 34 * len(rows), barmode="stack", bargap=0.35, yaxis={
            "type": "category", "categoryorder": "array", "categoryarray": names[::-1], "tickmode": "array",
            "tickvals": names, "ticktext": [esc(words.short(run["label"], 22)) + " " for run in rows],
            "showgrid": False,
        })  # fmt: skip
        caption = "Seconds of all calls of a stage, summed over the layers."
        panels.append(Panel(f"plot-stages-{at}", f"Phase: {phase}", caption, {"data": traces, "layout": layout}))
    return panels


def _series(look: Look, points: list[Json], field: str, unit: float) -> Json:
    mine = sorted((run for run in points if run["family"] == look.key), key=lambda run: run[field])
    # Two variants at one budget are not a curve; joining them would draw a cliff that nobody measured.
    curve = len(mine) > 1 and len({run["k"] for run in mine}) == len(mine)
    return {
        "type": "scatter", "mode": "lines+markers" if curve else "markers", "name": look.label, "meta": look.key,
        "x": [run[field] / unit for run in mine], "y": [run["perplexity"] for run in mine],
        "line": {"color": look.color, "width": 2.5},
        "marker": {"color": look.color, "size": 11, "symbol": look.symbol},
        "text": [_all_numbers(run) for run in mine], "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _all_numbers(run: Json) -> str:
    """Every number of the summary, for the hover. plotly reads markup in texts, so it gets escaped ones."""
    lines = [f"<b>{esc(run['label'])}</b>"]
    lines += [f"{c.title}: {esc(c.show(run[c.field]))}" for c in COLUMNS if run.get(c.field) is not None]
    return "<br>".join(lines)


def _ticks(xs: list[float]) -> Json:
    """On a log axis label the budgets themselves, unless two of them would print over each other."""
    kept: list[float] = []
    for x in sorted(set(xs)):
        if not kept or x > 1.3 * kept[-1]:
            kept.append(x)
    return {"tickvals": kept, "ticktext": [f"{x:.3g}" if x < 100 else f"{x:,.0f}" for x in kept]}


def _layout(
    x: str, y: str, height: int = 360, *, xaxis: Json | None = None, yaxis: Json | None = None, **more: Any
) -> Json:  # fmt: skip
    axis = {"showline": True, "automargin": True, "fixedrange": False, "zeroline": False}
    return {
        "height": height, "margin": {"l": 48, "r": 14, "t": 24, "b": 44}, "showlegend": False, "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif", "size": 12},
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "title": {"text": x}, **(xaxis or {})},
        "yaxis": {**axis, "title": {"text": y}, **(yaxis or {})},
        **more,
    }  # fmt: skip
