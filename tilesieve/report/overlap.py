"""Overlap: would one layer's selection do for another, and this step's for the next?"""

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, layout, line, log_ticks
from tilesieve.report.frame import Group, Section, aside
from tilesieve.report.heatmap import heat
from tilesieve.report.palette import Look
from tilesieve.report.tables import Entry, listing, matrix
from tilesieve.report.tidy import Json

MEAN = Look("mean", "mean over layers", "#3b7ff0")


def section(study: Json) -> Section:
    """Layer against layer at the same row, then a row against the rows before it."""
    part = study["overlaps"]
    panels = [panel for panel in (_layers(part), _lags(part), _lag_map(part)) if panel]
    by_name = {run["name"]: run["label"] for run in study["runs"]}
    run = by_name.get(part["run"], part["run"])
    facts = [run] if run else []
    facts += [f"k = {words.whole(part['k'])}"] if part["k"] is not None else []
    facts += [words.many(part["rows"], "row")] if part["rows"] is not None else []
    note = "Where sets agree, one layer can lend its selection to another, or a step can keep that of the step before."
    scope = aside(f"Measured with {', '.join(facts)}.") if facts and panels else ""
    return Section("overlap", "Overlap", note, (scope, Group(panels)))


def names(part: Json, count: int) -> list[int]:
    """The layers that rows and columns stand for; 0, 1, 2 … where the study does not say."""
    ids = part["layer_ids"]
    return ids if len(ids) == count and None not in ids else list(range(count))


def _layers(part: Json) -> Panel | None:
    values = part["layers"]
    if not any(values):
        return None
    ids = names(part, max(len(values), max(map(len, values))))
    down, across = ids[: len(values)], ids[: max(map(len, values))]
    figure = heat("in layer", "picks of layer", across, down, values, low=0, high=1, height=440)
    titles = [f"{at}" for at in across]
    table = matrix("Overlap of layers", "layer", titles, [str(at) for at in down], values,
                   lambda i, j: f"overlaps.layers.{i}.{j}", digits(3))  # fmt: skip
    caption = "Down: the layer whose picks these are. Across: the layer that makes this share of them too."
    return Panel("plot-overlap-layers", "Layer against layer", caption, figure, table, wide=True)


def _lags(part: Json) -> Panel | None:
    steps = [step for step in part["steps"] if step["lag"] is not None and step["overlap"] is not None]
    if not steps:
        return None
    xs = [step["lag"] for step in steps]
    axis = {"type": "log", **log_ticks(xs)} if min(xs) > 0 else {}
    frame = layout("rows before", "overlap, 0 to 1", xaxis=axis, yaxis={"rangemode": "tozero"})
    trace = line(MEAN, xs, [step["overlap"] for step in steps], "%{x} rows before: %{y:.4f}", size=9)
    entries = (Entry("lag", "rows before", words.whole), Entry("overlap", "overlap", digits(4)))
    table = listing("Overlap against lag", "overlaps.steps", part["steps"], entries)
    caption = "A row's set with that of so many rows before, mean over the layers."
    return Panel("plot-overlap-lag", "Overlap against lag", caption, {"data": [trace], "layout": frame}, table)


def _lag_map(part: Json) -> Panel | None:
    rows = [(at, step) for at, step in enumerate(part["steps"]) if step["layers"]]
    if not rows:
        return None
    ids = names(part, max(len(step["layers"]) for _, step in rows))
    down = [words.whole(step["lag"]) for _, step in rows]
    values = [step["layers"] for _, step in rows]
    figure = heat("layer", "rows before", ids, list(range(len(rows))), values, low=0, high=1, height=300)
    figure["layout"]["yaxis"] |= {"tickmode": "array", "tickvals": list(range(len(rows))), "ticktext": down}
    figure["data"][0] |= {"text": [[lag] * len(v) for lag, v in zip(down, values, strict=True)]}
    figure["data"][0]["hovertemplate"] = "layer %{x}, %{text} rows before<br>%{z:.4f}<extra></extra>"
    table = matrix("Overlap against lag by layer", "rows before", [f"layer {at}" for at in ids], down, values,
                   lambda i, j: f"overlaps.steps.{rows[i][0]}.layers.{j}", digits(3))  # fmt: skip
    return Panel("plot-overlap-lag-layers", "By layer", "The same, layer by layer. Dark layers must select anew.",
                 figure, table)  # fmt: skip
