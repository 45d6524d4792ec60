"""Latent: what a low-rank cache of K and V loses."""

from typing import Any

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Choice, Panel, counted, layout, line
from tilesieve.report.frame import Group, Section, aside, scope
from tilesieve.report.palette import Look, series
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

PATH = "sections.latent"
ERRORS = (
    Look("error", "K and V", "#3b7ff0"), Look("key_error", "K alone", "#d9700d", "dash", "diamond"),
    Look("value_error", "V alone", "#0f9d78", "dot", "square"),
)  # fmt: skip


def section(study: Json) -> Section:
    """Perplexity against ratio, then which layer resists."""
    part = study["sections"]["latent"]
    rows = part["rows"]
    places = list(dict.fromkeys(row["where"] or "latent" for row in rows))
    looks = series([(place, place) for place in places])
    panels = [p for p in (_ratio(part, looks), _layers_alone(part["by_layer"])) if p]
    width = f"A token has {words.whole(part['width'])} numbers of K and V per layer." if part["width"] else ""
    note = "K and V of a token kept as fewer numbers. The ratio is how many times fewer."
    shown = aside(width, scope(part) if panels else "", f"Note: {part['note']}." if part["note"] else "")
    errors = _errors(rows)
    return Section("latent", "Latent", note, (
        shown, Group(panels, tuple(looks.values())), Group(errors, ERRORS, pick="ratio"),
    ))  # fmt: skip


def name_of(row: Json, at: int) -> str:
    """A compression in words."""
    times = words.short_number(row["ratio"])
    parts = [f"{times}×"] if row["ratio"] is not None else [f"row {at}"]
    parts += [f"rank {words.whole(row['rank'])}"] if row["rank"] is not None else []
    return ", ".join([*parts, *([row["where"]] if row["where"] else [])])


def _ratio(part: Json, looks: dict[str, Look]) -> Panel | None:
    rows: list[Any] = [row for row in part["rows"] if row["ratio"] is not None and row["perplexity"] is not None]
    if not rows:
        return None
    traces = []
    for place, look in looks.items():
        mine = sorted((row for row in rows if (row["where"] or "latent") == place), key=lambda row: row["ratio"])
        if mine:
            hover = "%{x:.3g} times fewer numbers<br>perplexity %{y:.3f}"
            xs, ys = [row["ratio"] for row in mine], [row["perplexity"] for row in mine]
            traces.append(line(look, xs, ys, hover, size=10))
    axis = {"type": "log", "dtick": "D1"} if max(r["perplexity"] for r in rows) > 4 * min(
        r["perplexity"] for r in rows) > 0 else {}  # fmt: skip
    frame = layout("ratio, times fewer numbers", "perplexity", yaxis=axis)
    shown = [{**row, "what": row["where"]} for row in part["rows"]]
    entries = (
        Entry("what", "where"), Entry("ratio", "ratio", words.short_number), Entry("rank", "rank", words.whole),
        Entry("perplexity", "perplexity", words.fixed), Entry("delta", "Δ dense", words.signed_percent),
    )  # fmt: skip
    table = listing("Perplexity against ratio", f"{PATH}.rows", shown, entries)
    caption = "To the right: smaller caches. The perplexity axis is logarithmic." if axis else "To the right: smaller."
    return Panel("plot-latent-ratio", "Perplexity against ratio", caption, {"data": traces, "layout": frame}, table)


def _errors(rows: list[Json]) -> list[Panel]:
    entries = (
        Entry("layer", "layer", words.whole), Entry("error", "K and V", digits(4)),
        Entry("key_error", "K alone", digits(4)), Entry("value_error", "V alone", digits(4)),
    )  # fmt: skip
    choices = []
    for at, row in enumerate(rows):
        layers = row["layers"]
        traces = [
            line(look, [layer["layer"] for layer in layers], [layer[look.key] for layer in layers],
                 "layer %{x}: %{y:.4f}", size=6)
            for look in ERRORS if any(layer[look.key] is not None for layer in layers)
        ]  # fmt: skip
        if traces:
            frame = layout("layer", "relative error", xaxis=counted([layer["layer"] for layer in layers]),
                           yaxis={"rangemode": "tozero"})  # fmt: skip
            label = name_of(row, at)
            table = listing(f"Error by layer, {label}", f"{PATH}.rows.{at}.layers", layers, entries)
            choices.append(Choice(label, {"data": traces, "layout": frame}, table))
    if not choices:
        return []
    caption = "Relative Frobenius error of the rebuilt K and V."
    return [Panel("plot-latent-error", "Error by layer", caption, choices[0].figure, choices=tuple(choices), wide=True)]


def _layers_alone(part: Json) -> Panel | None:
    rows = [row for row in part["rows"] if row["layer"] is not None and row["delta"] is not None]
    if not rows:
        return None
    trace = {
        "type": "bar", "name": "delta", "meta": "delta", "x": [row["layer"] for row in rows],
        "y": [row["delta"] for row in rows], "marker": {"color": "#3b7ff0"},
        "hovertemplate": "layer %{x}: %{y:+.2%}<extra></extra>",
    }  # fmt: skip
    frame = layout("layer", "Δ dense", xaxis=counted([row["layer"] for row in rows]), yaxis={"tickformat": "+.1%"})
    entries = (
        Entry("layer", "layer", words.whole), Entry("perplexity", "perplexity", words.fixed),
        Entry("delta", "Δ dense", words.signed_percent),
    )  # fmt: skip
    table = listing("Only this layer compressed", f"{PATH}.by_layer.rows", part["rows"], entries)
    ratio = f", ratio {words.short_number(part['ratio'])}" if part["ratio"] is not None else ""
    where = f", {part['where']}" if part["where"] else ""
    over = f", over {words.whole(part['tokens'])} tokens" if part["tokens"] is not None else ""
    caption = f"Only this layer compressed{ratio}{where}{over}: a tall bar is a layer to leave alone."
    return Panel("plot-latent-layers", "Loss by layer", caption, {"data": [trace], "layout": frame}, table)
