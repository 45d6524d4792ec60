"""Sensitivity: which layers and heads pay for being sparse, how good that estimate is, what exempting them buys."""

from tilesieve.report import words
from tilesieve.report.budget import EXEMPT_LOOK, bytes_points, with_bytes
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, bars, counted, layout, line, named
from tilesieve.report.frame import Group, Section, aside, scope
from tilesieve.report.heatmap import layers_by_heads
from tilesieve.report.markup import esc
from tilesieve.report.palette import DASHES, Look
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

PATH = "sections.sensitivity"
COST = Look("cost", "estimated cost", "#3b7ff0", symbol="bar")
POINTS = Look("checked", "measured runs", "#d9700d", symbol="diamond")
EVEN = Look("even", "as estimated", "#7a8290", "dash", "none")


def section(study: Json) -> Section:
    """From the map of all heads down to the few that matter."""
    part = study["sections"]["sensitivity"]
    panels = [
        panel
        for panel in (_map(part), _layers(part), _by_k(part), _checked(part), _ranked(part), _exempt(part))
        if panel
    ]
    note = (
        "The cost in nats per token of making one layer or one head sparse while all others stay dense, "
        "estimated for all of them from one pass with gradients. Orange loses, blue gains."
    )
    policy = f"Policy: {part['policy']}." if part["policy"] and panels else ""
    return Section("sensitivity", "Sensitivity", note, (aside(policy, scope(part) if panels else ""), Group(panels)))


def six(value: float | None) -> str:
    """Costs of one head are small."""
    return words.signed(value, 6)


def where(layer: int | None, head: int | None) -> str:
    """A layer, or one of its heads."""
    at = f"layer {words.whole(layer)}"
    return at if head is None or head < 0 else f"{at}, head {words.whole(head)}"


def _map(part: Json) -> Panel | None:
    made = layers_by_heads(
        part["layers"], "heads", lambda j, h: f"{PATH}.layers.{j}.heads.{h}", "Cost by layer and head",
        signed=True, show=six,
    )  # fmt: skip
    if not made:
        return None
    figure, table = made
    figure["data"][0]["hovertemplate"] = "head %{x}, layer %{y}<br>%{z:+.3g} nats / token<extra></extra>"
    return Panel("plot-sensitivity", "Cost by layer and head", "Nats per token, estimated.", figure, table, wide=True)


def _layers(part: Json) -> Panel | None:
    rows = [row for row in part["layers"] if row["cost"] is not None]
    if not rows:
        return None
    trace = {
        "type": "bar", "name": "cost", "meta": "cost", "x": [row["layer"] for row in rows],
        "y": [row["cost"] for row in rows], "marker": {"color": COST.color},
        "hovertemplate": "layer %{x}: %{y:+.4g} nats / token<extra></extra>",
    }  # fmt: skip
    frame = layout("layer", "nats per token", xaxis=counted([row["layer"] for row in rows]), yaxis={"zeroline": True})
    entries = (
        Entry("layer", "layer", words.whole), Entry("cost", "cost, nats", six),
        Entry("overlap", "overlap", digits(4)),
    )  # fmt: skip
    table = listing("Cost by layer", f"{PATH}.layers", part["layers"], entries)
    caption = "Only this layer sparse, all its heads together."
    return Panel("plot-sensitivity-layers", "Cost by layer", caption, {"data": [trace], "layout": frame}, table)


def _by_k(part: Json) -> Panel | None:
    rows = [(at, row) for at, row in enumerate(part["by_k"]) if row["layers"]]
    if len(rows) < 2:
        return None
    looks = [Look(f"k{row['k']}", f"k {words.whole(row['k'])}", COST.color, dash, "circle")
             for (_, row), dash in zip(rows, DASHES, strict=False)]  # fmt: skip
    traces = [
        line(look, [n["layer"] for n in row["layers"]], [n["cost"] for n in row["layers"]],
             "layer %{x}: %{y:+.4g} nats / token")
        for look, (_, row) in zip(looks, rows, strict=False)
    ]  # fmt: skip
    for trace, (at, _) in zip(traces, rows, strict=False):
        trace["line"] = {**trace["line"], "width": 1 + 0.7 * at}
    layers = [n["layer"] for n in rows[0][1]["layers"]]
    frame = layout("layer", "nats per token", xaxis=counted(layers), yaxis={"zeroline": True})
    entries = (Entry("layer", "layer", words.whole), Entry("cost", "cost, nats", six))
    table = listing("Budgets", f"{PATH}.by_k", part["by_k"], (Entry("k", "k", words.whole),)) + "".join(
        listing(f"k {words.whole(row['k'])}", f"{PATH}.by_k.{at}.layers", row["layers"], entries) for at, row in rows
    )
    said = ", ".join(f"{look.dash} {look.label}" for look in looks)
    caption = f"Only this layer sparse, at several k: {said}; the thicker the line, the larger k."
    return Panel("plot-sensitivity-k", "Cost by layer and k", caption, {"data": traces, "layout": frame}, table)


def _ranked(part: Json) -> Panel | None:
    rows = [(str(at), row) for at, row in enumerate(part["ranked"]) if row["cost"] is not None]
    if not rows:
        return None
    names, costs = [name for name, _ in rows], [row["cost"] for _, row in rows]
    labels = [where(row["layer"], row["head"]) for _, row in rows]
    frame = layout(
        "nats per token", "", 90 + 22 * len(rows), bargap=0.3, yaxis=named(names, labels), xaxis={"nticks": 5}
    )
    figure = {"data": [bars(COST, names, costs, "nats / token")], "layout": frame}
    entries = (
        Entry("layer", "layer", words.whole), Entry("head", "head", words.whole),
        Entry("cost", "cost, nats", six),
    )  # fmt: skip
    table = listing("Worst first", f"{PATH}.ranked", part["ranked"], entries)
    caption = "Where a dense exception would help first."
    return Panel("plot-sensitivity-ranked", "The most expensive heads", caption, figure, table)


def _checked(part: Json) -> Panel | None:
    rows = [row for row in part["checked"] if row["estimated"] is not None and row["measured"] is not None]
    if not rows:
        return None
    estimated, measured = [row["estimated"] for row in rows], [row["measured"] for row in rows]
    low, high = min([*estimated, *measured, 0]), max([*estimated, *measured, 0])
    points = line(POINTS, estimated, measured, "estimated %{x:+.4g}<br>measured %{y:+.4g}", curve=False, size=10)
    points |= {"text": [esc(where(row["layer"], row["head"])) for row in rows]}
    points["hovertemplate"] = "%{text}<br>" + points["hovertemplate"].partition("<br>")[2]
    even = {
        "type": "scatter", "mode": "lines", "name": "as estimated", "meta": "even", "x": [low, high],
        "y": [low, high], "line": {"color": EVEN.color, "dash": "dash", "width": 1.5}, "hoverinfo": "skip",
    }  # fmt: skip
    frame = layout("estimated, nats per token", "measured, nats per token")
    shown = [{**row, "where": where(row["layer"], row["head"])} for row in part["checked"]]
    entries = (
        Entry("where", "what"), Entry("layer", "layer", words.whole), Entry("head", "head", words.whole),
        Entry("estimated", "estimated", six), Entry("measured", "measured", six),
    )  # fmt: skip
    table = listing("Estimated against measured", f"{PATH}.checked", shown, entries)
    caption = "Real runs with only this layer or head sparse. On the dashed line the estimate is exact."
    figure = {"data": [even, points], "layout": frame}
    return Panel("plot-sensitivity-checked", "Estimated against measured", caption, figure, table)


def _exempt(part: Json) -> Panel | None:
    rows = with_bytes(part["exempt"])
    if not rows:
        return None
    frame = layout("attention MB per decoded token", "perplexity")
    shown = [{**row, "which": ", ".join(map(words.whole, row["layers"])) or "none"} for row in part["exempt"]]
    entries = (
        Entry("label", "policy"), Entry("which", "layers left dense"),
        Entry("perplexity", "perplexity", words.fixed), Entry("delta", "Δ dense", words.signed_percent),
        Entry("bytes_per_token", "MB / token", words.megabytes),
    )  # fmt: skip
    table = listing("What exempting buys", f"{PATH}.exempt", shown, entries)
    first, last = rows[0], rows[-1]
    caption = "Each point leaves more layers dense."
    if len(rows) > 1:
        caption += (
            f" From {words.fixed(first['perplexity'])} at {words.megabytes(first['bytes_per_token'])} MB to "
            f"{words.fixed(last['perplexity'])} at {words.megabytes(last['bytes_per_token'])} MB."
        )
    figure = {"data": [bytes_points(EXEMPT_LOOK, rows, curve=True)], "layout": frame}
    return Panel("plot-sensitivity-exempt", "What leaving layers dense buys", caption, figure, table)
