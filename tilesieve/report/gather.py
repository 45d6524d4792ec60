"""Gather: what it costs to fetch scattered rows."""

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, bars, counted, layout, line, log_ticks, named
from tilesieve.report.frame import Group, Section, aside
from tilesieve.report.overlap import names
from tilesieve.report.palette import Look
from tilesieve.report.tables import Entry, listing, matrix
from tilesieve.report.tidy import Json

PATH = "sections.gather"
BLUE = Look("gather", "", "#3b7ff0")
MICRO = Entry("seconds", "µs", lambda value: words.NONE if value is None else words.fixed(1e6 * value, 1))


def section(study: Json) -> Section:
    """Layouts side by side, then what a buffer of hot positions would catch."""
    part = study["sections"]["gather"]
    layouts, more = _layouts(part), [p for p in (_hot(part), _by_layer(part), *_by_context(part)) if p]
    facts = [f"k = {words.whole(part['k'])}"] if part["k"] is not None else []
    facts += [f"a context of {words.whole(part['context'])}"] if part["context"] is not None else []
    facts += [words.many(part["rows"], "row")] if part["rows"] is not None else []
    facts += [words.many(part["layer_count"], "layer")] if part["layer_count"] is not None else []
    note = "Selected rows lie scattered in the cache. Fewer and longer runs of neighbours are cheaper to read."
    scope = aside(f"Measured with {', '.join(facts)}.") if facts and (layouts or more) else ""
    return Section("gather", "Gather", note, (scope, Group(layouts), Group(more)))


def _layouts(part: Json) -> list[Panel]:
    rows = [
        {**row, "name": ", ".join(row[key] for key in ("layout", "order", "way") if row[key]) or None}
        for row in part["layouts"]
    ]
    panels = []
    for key, title, unit, scale, entry in (
        ("runs", "Runs of neighbours", "runs per row", 1, Entry("runs", "runs", digits(1))),
        ("bytes", "Bytes", "kB per row and layer", 1e-3,
         Entry("bytes", "kB", lambda value: words.NONE if value is None else words.fixed(value / 1e3, 1))),
        ("seconds", "Time", "µs per row and layer", 1e6, MICRO),
    ):  # fmt: skip
        drawn = [(str(at), row) for at, row in enumerate(rows) if row[key] is not None]
        if not drawn:
            continue
        places = [name for name, _ in drawn]
        trace = bars(BLUE, places, [row[key] * scale for _, row in drawn], unit)
        trace["hovertemplate"] = f"%{{x:.4g}} {unit}<extra></extra>"
        frame = layout(unit, "", 90 + 36 * len(drawn), bargap=0.35, xaxis={"nticks": 5},
                       yaxis=named(places, [row["name"] or "" for _, row in drawn]))  # fmt: skip
        table = listing(title, f"{PATH}.layouts", rows, (Entry("name", "layout"), entry))
        caption = "Mean per row." if key == "runs" else "Per row and layer."
        panels.append(Panel(f"plot-gather-{key}", title, caption, {"data": [trace], "layout": frame}, table))
    return panels


def _hot(part: Json) -> Panel | None:
    rows = [row for row in part["hot"] if row["size"] is not None and row["hit"] is not None]
    if not rows:
        return None
    xs = [row["size"] for row in rows]
    axis = {"type": "log", **log_ticks(xs)} if min(xs) > 0 else {}
    frame = layout("positions in the buffer", "picks found", xaxis=axis, yaxis={"tickformat": ".0%"})
    trace = line(BLUE, xs, [row["hit"] for row in rows], "", size=9)
    trace["hovertemplate"] = "%{x:,} positions: %{y:.1%}<extra></extra>"
    entries = (Entry("size", "positions", words.whole), Entry("hit", "picks found", words.percent))
    table = listing("Hot buffer", f"{PATH}.hot", part["hot"], entries)
    caption = "Share of the picks that a small fast buffer of recently picked positions already holds."
    return Panel("plot-gather-hot", "Hot buffer", caption, {"data": [trace], "layout": frame}, table)


def _by_layer(part: Json) -> Panel | None:
    values = part["runs_by_layer"]
    if not any(value is not None for value in values):
        return None
    layers = names(part, len(values))
    trace = line(BLUE, layers, values, "", size=6)
    trace["hovertemplate"] = "layer %{x}: %{y:.1f} runs<extra></extra>"
    frame = layout("layer", "runs per row", xaxis=counted(layers), yaxis={"rangemode": "tozero"})
    table = matrix("Runs by layer", "layer", ["runs per row"], [str(at) for at in layers], [[v] for v in values],
                   lambda i, j: f"{PATH}.runs_by_layer.{i}", digits(1))  # fmt: skip
    caption = "Mean contiguous runs of a row's picks. As many runs as picks: nothing lies side by side."
    return Panel("plot-gather-layers", "Runs by layer", caption, {"data": [trace], "layout": frame}, table)


def _by_context(part: Json) -> list[Panel]:
    panels = []
    for key, title, unit, scale, entry in (
        ("seconds", "Time against context", "µs per row and layer", 1e6, MICRO),
        ("runs", "Runs against context", "runs per row", 1, Entry("runs", "runs", digits(1))),
    ):
        rows = [row for row in part["by_context"] if row["context"] and row[key] is not None]
        if not rows:
            continue
        xs = [row["context"] for row in rows]
        frame = layout("context, tokens", unit, xaxis={"type": "log", **log_ticks(xs)}, yaxis={"rangemode": "tozero"})
        trace = line(BLUE, xs, [row[key] * scale for row in rows], "", size=9)
        trace["hovertemplate"] = f"%{{x:,}} tokens: %{{y:.4g}} {unit}<extra></extra>"
        entries = (Entry("context", "context", words.whole), entry)
        table = listing(title, f"{PATH}.by_context", part["by_context"], entries)
        caption = "The same k from a longer text."
        panels.append(Panel(f"plot-gather-context-{key}", title, caption, {"data": [trace], "layout": frame}, table))
    return panels
