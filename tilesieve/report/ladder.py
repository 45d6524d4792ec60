"""The ladder: from dense to the whole policy a rung at a time, and what each rung loses."""

from collections.abc import Sequence

from tilesieve.report import words
from tilesieve.report.budget import LADDER_LOOK, bytes_points, comparable, with_bytes
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, bars, counted, layout, line, log_ticks, named
from tilesieve.report.frame import Group, Section, aside, scope
from tilesieve.report.markup import esc, number
from tilesieve.report.mass import by_head
from tilesieve.report.palette import Look, series
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

OWN = Look("own", "loss of this rung", "#3b7ff0", symbol="bar")
ALONE = Look("alone", "the same change by itself", "#c79a0a", symbol="bar")
SIDE = Look("side", "side rung, not in the sum", "#c2479b", symbol="bar")
TOTAL = Look("total", "all rungs", "#7a8290", symbol="bar")
PATH = "sections.ladder.rungs"
NUMBERS = (
    Entry("label", "rung"), Entry("own", "own, nats", words.signed), Entry("alone", "alone, nats", words.signed),
    Entry("perplexity", "perplexity", words.fixed), Entry("nll", "nll", digits(4)),
    Entry("delta", "Δ dense", words.signed_percent), Entry("kl_mean", "KL mean", digits(4)),
    Entry("kl_worst", "KL worst", digits(3)), Entry("worst_at", "worst at", words.whole),
    Entry("mass_mean", "mass mean", digits(4)), Entry("mass_worst", "mass worst", digits(4)),
    Entry("top1", "top-1", digits(4)), Entry("overlap", "overlap", digits(4)), Entry("rate", "rate", words.percent),
    Entry("bytes_per_token", "MB / token", words.megabytes),
)  # fmt: skip
_LAYER = Entry("layer", "layer", words.whole)
BY_LAYER = (
    ("mass_mean", "Mean mass kept, rung by rung",
     (_LAYER, Entry("mass_mean", "mass mean", digits(4)), Entry("mass_worst", "mass worst", digits(4)),
      Entry("top1", "top-1", digits(4)))),
    ("overlap", "Overlap with exact, rung by rung", (_LAYER, Entry("overlap", "overlap", digits(4)))),
)  # fmt: skip


def section(study: Json) -> Section:
    """Waterfall, then where each rung loses mass; its own bytes panel where its tokens are not those of the runs."""
    ladder = study["sections"]["ladder"]
    rungs = [(at, rung) for at, rung in enumerate(ladder["rungs"]) if rung["name"] or rung["own"] is not None]
    if not rungs:
        return Section("ladder", "Ladder", "", ())
    labels = {at: title(rung, at) for at, rung in rungs}
    heads = by_head("plot-ladder-heads", [(labels[at], "", rung["layers"], f"{PATH}.{at}.layers")
                                          for at, rung in rungs])  # fmt: skip
    looks = series([(str(at), labels[at]) for at, rung in rungs if rung["layers"]])
    apart = [] if comparable(ladder, study["meta"]) else _bytes(ladder)
    note = "From dense to the whole policy one change at a time: the longest bar is where the loss comes from."
    return Section("ladder", "Ladder", note, (
        _sentence(ladder), aside(scope(ladder)), _changes(rungs, labels),
        Group([_waterfall(ladder, rungs, labels), *apart], (OWN, ALONE, SIDE, TOTAL)),
        Group(_by_layer(rungs, labels, looks), tuple(looks.values())), Group(heads, pick="rung"),
    ))  # fmt: skip


def title(rung: Json, at: int) -> str:
    """What a rung is called where a study forgot to say."""
    return rung["label"] or rung["name"] or f"rung {at}"


def floors(rungs: Sequence[Json]) -> list[float]:
    """Where each rung's bar begins: the sum of those before. A side rung adds nothing to the next.

    A side rung is held against some rung before it, not always the last: its own nll and loss tell which.
    """
    at, found = 0.0, []
    dense = next((rung["nll"] for rung in rungs if rung["nll"] is not None), None)
    for rung in rungs:
        known = rung["side"] and None not in (dense, rung["nll"], rung["own"])
        found.append(rung["nll"] - rung["own"] - dense if known else at)
        at += 0 if rung["side"] else rung["own"] or 0
    return found


def _sentence(ladder: Json) -> str:
    total, alone, both = (ladder[key] for key in ("total", "sum_alone", "interaction"))
    if total is None:
        return ""
    spoken = number(words.signed(total), "sections.ladder.total", total)
    text = f"<p>All rungs together add {spoken} nats per token of loss"
    if alone is not None:
        text += f"; one at a time they add up to {number(words.signed(alone), 'sections.ladder.sum_alone', alone)}"
    if both is not None:
        share = words.ratio(both, total)
        part = f" ({words.percent(abs(share), 0)} of the whole)" if share is not None else ""
        way = "the changes make each other worse" if both > 0 else "they lose the same thing more than once"
        way = way if both else "the changes leave each other alone"
        spoken = number(words.signed(both), "sections.ladder.interaction", both)
        text += f", so {spoken} is interaction{esc(part)}: {way}"
    return text + ".</p>"


def _changes(rungs: Sequence[tuple[int, Json]], labels: dict[int, str]) -> str:
    steps = "".join(
        f"<li><b>{esc(labels[at])}</b>{': ' + esc(rung['adds']) if rung['adds'] else ''}"
        f"{' (side rung: stands beside the others and is not summed)' if rung['side'] else ''}</li>"
        for at, rung in rungs
    )
    return f'<ol class="steps" start="0">{steps}</ol>'


def _waterfall(ladder: Json, rungs: Sequence[tuple[int, Json]], labels: dict[int, str]) -> Panel:
    names = [str(at) for at, _ in rungs]
    base = floors([rung for _, rung in rungs])
    main = [rung["own"] if not rung["side"] else None for _, rung in rungs]
    side = [rung["own"] if rung["side"] else None for _, rung in rungs]
    alone = [rung["alone"] for _, rung in rungs]
    traces = [bars(OWN, names, main, "nats / token", base=base, offsetgroup="own")]
    if any(value is not None for value in alone):
        # plotly stacks a group's bars from below: the first one drawn stands under the other.
        traces.insert(0, bars(ALONE, names, alone, "nats / token", base=base, offsetgroup="alone"))
    if any(value is not None for value in side):
        marked = bars(SIDE, names, side, "nats / token", base=base, offsetgroup="own")
        marked["marker"] = {**marked["marker"], "pattern": {"shape": "/", "size": 6, "fillmode": "overlay"}}
        traces.append(marked)
    ticks = [labels[at] for at, _ in rungs]
    if ladder["total"] is not None:
        traces.append(bars(TOTAL, ["total"], [ladder["total"]], "nats / token", base=[0.0], offsetgroup="own"))
        names, ticks = [*names, "total"], [*ticks, "all rungs"]
    for trace in traces:
        # With a base, plotly's x is the bar's end; what a reader wants is its length.
        trace["customdata"] = trace["x"]
        trace["hovertemplate"] = "%{fullData.name}: %{customdata:+.4f} nats / token<extra></extra>"
    frame = layout("nats per token above dense", "", 90 + 46 * len(names), barmode="group", bargap=0.25,
                   yaxis=named(names, ticks), xaxis={"zeroline": True, "nticks": 6})  # fmt: skip
    table = listing("Rungs of the ladder", PATH, ladder["rungs"], NUMBERS)
    caption = "A bar begins where the rungs before it ended. To the left: the rung gains."
    figure = {"data": traces, "layout": frame}
    return Panel("plot-ladder", "What each rung adds to the loss", caption, figure, table, wide=True)


def _by_layer(
    rungs: Sequence[tuple[int, Json]], labels: dict[int, str], looks: dict[str, Look]
) -> list[Panel]:  # fmt: skip
    panels = []
    for key, name, entries in BY_LAYER:
        drawn = [(at, rung) for at, rung in rungs if any(layer[key] is not None for layer in rung["layers"])]
        if not drawn:
            continue
        traces = [
            line(looks[str(at)], [layer["layer"] for layer in rung["layers"]],
                 [layer[key] for layer in rung["layers"]], "layer %{x}: %{y:.4f}", size=5)
            for at, rung in drawn
        ]  # fmt: skip
        ids = [layer["layer"] for _, rung in drawn for layer in rung["layers"]]
        figure = {"data": traces, "layout": layout("layer", "0 to 1", xaxis=counted(ids))}
        caption = "A rung that falls below the one before it loses in the layers where it falls."
        table = "".join(
            f"<h4>{esc(labels[at])}</h4>"
            + listing(f"By layer, {labels[at]}", f"{PATH}.{at}.layers", rung["layers"], entries)
            for at, rung in drawn
        )
        panels.append(Panel(f"plot-ladder-{key.replace('_', '-')}", name, caption, figure, table))
    return panels


def _bytes(ladder: Json) -> list[Panel]:
    rows = with_bytes(ladder["rungs"])
    if not rows:
        return []
    xs = [row["bytes_per_token"] / 1e6 for row in rows]
    frame = layout("attention MB per decoded token", "perplexity", xaxis={"type": "log", **log_ticks(xs)})
    entries = [entry for entry in NUMBERS if entry.key in ("label", "perplexity", "bytes_per_token")]
    table = listing("Rungs against bytes", PATH, ladder["rungs"], entries)
    caption = "Other tokens than the runs above, so in a plot of its own."
    figure = {"data": [bytes_points(LADDER_LOOK, rows)], "layout": frame}
    return [Panel("plot-ladder-bytes", "Rungs: perplexity against attention bytes", caption, figure, table, wide=True)]
