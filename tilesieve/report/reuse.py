"""Reuse: how seldom may one select?"""

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Panel, counted, layout, line
from tilesieve.report.frame import Group, Section, aside, scope
from tilesieve.report.markup import esc
from tilesieve.report.palette import Look
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

RULES = (
    Look("every", "every n rows", "#3b7ff0"),
    Look("cosine", "when the query has turned", "#d9700d", symbol="diamond"),
    Look("named", "cosine, two named thresholds", "#0f9d78", symbol="square"),
    Look("always", "always", "#7a8290", symbol="star"),
)
TURN = (Look("median", "median", "#3b7ff0"), Look("p10", "lowest tenth", "#d9700d", "dash", "diamond"))


def section(study: Json) -> Section:
    """The loss against the share of rows that select, for a fixed step and for a rule that looks at the query."""
    part = study["sections"]["reuse"]
    curves, turn = _curves(part), _turn(part)
    note = (
        "A row may keep the selection of a row before it: every n steps, or while its query looks like the one before. "
        "The rules are held against each other at nearly equal rates (the rates reached are drawn)."
    )
    measured = aside(scope(part)) if curves or turn else ""
    return Section("reuse", "Reuse", note, (measured, Group(curves, RULES), Group(turn, TURN)))


def _curves(part: Json) -> list[Panel]:
    rows = [row for row in part["runs"] if row["rate"] is not None]
    entries = (
        Entry("label", "rule"), Entry("n", "n", words.whole), Entry("threshold", "threshold", words.short_number),
        Entry("rate", "rate", words.percent), Entry("perplexity", "perplexity", words.fixed),
        Entry("delta", "Δ dense", words.signed_percent), Entry("kl_mean", "KL mean", digits(4)),
        Entry("kl_worst", "KL worst", digits(3)), Entry("mass_mean", "mass mean", digits(4)),
    )  # fmt: skip
    table = listing("Rules of reuse", "sections.reuse.runs", part["runs"], entries)
    panels = []
    for key, title, axis, form in (
        ("delta", "Perplexity loss against rate", "Δ dense", "%{y:+.2%}"),
        ("mass_mean", "Mass kept against rate", "mass, 0 to 1", "%{y:.4f}"),
    ):
        traces = []
        for look in RULES:
            mine = sorted((row for row in rows if rule_of(row) == look.key and row[key] is not None),
                          key=lambda row: row["rate"])  # fmt: skip
            if not mine:
                continue
            xs, ys = [row["rate"] for row in mine], [row[key] for row in mine]
            trace = line(look, xs, ys, "", curve=look.key != "named", size=10)
            trace |= {"text": [esc(row["label"] or "") for row in mine]}
            trace["hovertemplate"] = f"%{{text}}<br>%{{x:.1%}} of the rows select<br>{form}<extra></extra>"
            traces.append(trace)
        if traces:
            frame = layout("share of rows that select", axis, xaxis={"tickformat": ".0%", "rangemode": "tozero"},
                           yaxis={"tickformat": "+.1%"} if key == "delta" else {})  # fmt: skip
            better = "lower" if key == "delta" else "higher"
            caption = f"Further left: fewer selections. The {better} curve is the better rule."
            figure = {"data": traces, "layout": frame}
            panels.append(Panel(f"plot-reuse-{key.replace('_', '-')}", title, caption, figure, table))
    return panels


def rule_of(row: Json) -> str | None:
    """The curve of a run. Two named thresholds are another rule than one that was fitted to a rate."""
    return "named" if row["name"] == "cosine-named" else row["rule"]


def _turn(part: Json) -> list[Panel]:
    rows = part["turn"]
    traces = [
        line(look, [row["layer"] for row in rows], [row[look.key] for row in rows], "layer %{x}: %{y:.4f}", size=6)
        for look in TURN if any(row[look.key] is not None for row in rows)
    ]  # fmt: skip
    if not traces:
        return []
    entries = (
        Entry("layer", "layer", words.whole), Entry("median", "median", digits(4)), Entry("p10", "p10", digits(4)),
    )  # fmt: skip
    frame = layout("layer", "cosine", xaxis=counted([row["layer"] for row in rows]))
    caption = "Cosine of a query with the one before it. Near 1 a kept selection is still right."
    table = listing("Turn of the query by layer", "sections.reuse.turn", rows, entries)
    return [Panel("plot-reuse-turn", "How far the query turns, by layer", caption, {"data": traces, "layout": frame},
                  table, wide=True)]  # fmt: skip
