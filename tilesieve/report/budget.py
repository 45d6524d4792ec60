"""What a budget costs: perplexity against the budget and against the bytes, with the limits that a chip sets."""

from math import log10
from typing import Any

from tilesieve.report import words
from tilesieve.report.columns import COLUMNS
from tilesieve.report.figure import Panel, layout, log_ticks
from tilesieve.report.frame import Group, Section
from tilesieve.report.markup import esc
from tilesieve.report.palette import Look, family_color, family_looks
from tilesieve.report.tables import Entry, listing, of_runs
from tilesieve.report.tidy import Json, dense_of

LADDER_LOOK = Look("ladder", "rungs of the ladder", "#c79a0a", symbol="triangle-up")
EXEMPT_LOOK = Look("exempt", "layers left dense", "#8f6bd9", symbol="diamond")
# Lines further out than this many times the largest budget would squeeze the curve: those are listed instead.
REACH = 64
LINE = "#8f6bd9"
# Pixels: a letter and a space, a letter's height, and how wide the plot is at the least.
APART, STEP, PHONE = 16, 15, 250


def section(study: Json) -> Section:
    """Empty without runs: a limit alone has no curve to stand beside."""
    runs = [run for run in study["runs"] if run["perplexity"] is not None]
    panels = _against_k(runs, study["sections"]["limits"]) + _against_bytes(runs, study)
    looks = (*family_looks(runs), LADDER_LOOK, EXEMPT_LOOK)
    note = "Follow a curve to the left: where it leaves the dense line, the budget has become too small."
    return Section("budget", "What a budget costs", note, (Group(panels, looks), _limits(study["sections"]["limits"])))


def comparable(part: Json, meta: Json) -> bool:
    """Whether a part's perplexities are over the same tokens as those of the runs."""
    same_tokens = part["tokens"] is not None and part["tokens"] == meta["tokens"]
    return same_tokens and (not part["scored"] or part["scored"] == meta["scored"])


def with_bytes(rows: list[Json]) -> list[Json]:
    """Rows that have a place in a plot of perplexity against bytes."""
    return [row for row in rows if row["perplexity"] is not None and row["bytes_per_token"]]


def bytes_points(look: Look, rows: list[Json], curve: bool = False) -> Json:
    """Rows that are no runs, as points over their bytes."""
    return {
        "type": "scatter", "mode": "lines+markers" if curve else "markers", "name": look.label, "meta": look.key,
        "x": [row["bytes_per_token"] / 1e6 for row in rows], "y": [row["perplexity"] for row in rows],
        "marker": {"color": look.color, "size": 11, "symbol": look.symbol},
        "line": {"color": look.color, "width": 2},
        "text": [esc(row["label"] or "") for row in rows],
        "hovertemplate": "<b>%{text}</b><br>%{x:.4g} MB per token<br>perplexity %{y:.3f}<extra></extra>",
    }  # fmt: skip


def _against_k(runs: list[Json], limits: Json) -> list[Panel]:
    points = [run for run in runs if run["k"] and run["family"] != "dense"]
    dense = dense_of(runs)
    if not points and not dense:
        return []
    xs = [run["k"] for run in points] or [64, 4096]
    lines = [(mark, line) for mark, line in marked(limits) if line["k"] and line["k"] <= REACH * max(xs)]
    far = [mark for mark, line in marked(limits) if line["k"] and line["k"] > REACH * max(xs)]
    seen = [line["k"] for _, line in lines]
    traces = [_series(look, points, "k", 1) for look in family_looks(points)]
    if dense:
        traces.insert(0, _level(dense, [min(xs + seen) / 1.25, max(xs + seen) * 1.25]))
    note, axis = _note(runs, points, dense)
    frame = layout(
        "budget k, positions per query", "perplexity", xaxis={"type": "log", **log_ticks(xs, seen)}, yaxis=axis
    )
    note += f" Further out than drawn: {', '.join(far)}." if far else ""
    if lines:
        note += " " + " ".join(f"{mark}: {line['name']}, k = {words.whole(line['k'])}." for mark, line in lines)
        frame["shapes"] = [
            {"type": "line", "xref": "x", "yref": "paper", "x0": k, "x1": k, "y0": 0, "y1": 1,
             "line": {"color": LINE, "width": 1.5, "dash": "dot"}} for k in seen
        ]  # fmt: skip
        high = _levels(seen, log10(max(xs + seen) / min(xs + seen)) + 0.2)
        frame["annotations"] = [_flag(level, mark, line) for level, (mark, line) in zip(high, lines, strict=True)]
        frame["margin"]["t"] = max(44, 14 + STEP * (1 + max(high)))
    table = of_runs("Perplexity against budget", runs, [c for c in COLUMNS if c.field in ("k", "perplexity", "delta")])
    return [Panel("plot-budget", "Perplexity against budget", note, {"data": traces, "layout": frame}, table)]


def _levels(ks: list[float], decades: float) -> list[int]:
    """How high each line's letter stands: the lowest place where none stands too near on a phone."""
    levels = dict.fromkeys(range(len(ks)), 0)
    last: list[float] = []
    for at in sorted(levels, key=lambda at: ks[at]):
        x = PHONE * log10(ks[at]) / decades
        levels[at] = next((level for level, before in enumerate(last) if x - before >= APART), len(last))
        last[levels[at] : levels[at] + 1] = [x]
    return list(levels.values())


def _flag(level: int, mark: str, line: Json) -> Json:
    """A letter above a line."""
    return {
        "xref": "x", "yref": "paper", "x": log10(line["k"]), "y": 1, "yanchor": "bottom", "yshift": STEP * level,
        "text": f"<b>{mark}</b>", "showarrow": False, "font": {"color": LINE, "size": 13},
        "hovertext": esc(f"{line['name']}: k = {words.whole(line['k'])}"),
    }  # fmt: skip


def marked(limits: Json) -> list[tuple[str, Json]]:
    """The lines with the letters that they carry in the plot and in the table."""
    lines = [line for line in limits["lines"] if line["name"] is not None or line["k"] is not None]
    return [(chr(ord("A") + at % 26), line) for at, line in enumerate(lines)]


def _limits(limits: Json) -> str:
    """What each line is: the sentence about the chip, and how every number is counted."""
    lines = [{**line, "mark": mark} for mark, line in marked(limits)]
    if not lines:
        return ""
    where = f"for {limits['model']}" if limits["model"] else ""
    at = f"at a context of {words.whole(limits['context'])}" if limits["context"] is not None else ""
    spoken = " ".join(part for part in (where, at) if part)
    chip = f" Chip: {limits['chip']}." if limits["chip"] else ""
    entries = (
        Entry("mark", "line"), Entry("name", "what"), Entry("k", "largest k", words.whole), Entry("what", "counted"),
    )  # fmt: skip
    title = f"Where sparse stops paying {spoken}".strip()
    return (
        f"<h3>{esc(title)}</h3>"
        '<p class="note">The largest budget at which sparse attention costs no more than dense. Nought or a dash: '
        f"it never pays.{esc(chip)}</p>{listing(title, 'sections.limits.lines', lines, entries)}"
    )


def _against_bytes(runs: list[Json], study: Json) -> list[Panel]:
    points = [run for run in runs if run["bytes_per_token"] and run["family"] != "dense"]
    dense = dense_of(runs)
    ladder, sensitivity = study["sections"]["ladder"], study["sections"]["sensitivity"]
    rungs = with_bytes(ladder["rungs"]) if comparable(ladder, study["meta"]) else []
    exempt = with_bytes(sensitivity["exempt"]) if comparable(sensitivity, study["meta"]) else []
    # Dense alone says nothing about bytes.
    if not points:
        return []
    traces = [_series(look, points, "bytes_per_token", 1e6) for look in family_looks(points)]
    traces += [bytes_points(LADDER_LOOK, rungs)] if rungs else []
    traces += [bytes_points(EXEMPT_LOOK, exempt)] if exempt else []
    xs = [row["bytes_per_token"] / 1e6 for row in (*points, *rungs, *exempt)]
    if dense:
        traces.insert(0, _level(dense, [min(xs) / 1.25, max(xs) * 1.25]))
    note, axis = _note(runs, points, dense)
    frame = layout("attention MB per decoded token", "perplexity", xaxis={"type": "log", **log_ticks(xs)}, yaxis=axis)
    fields = ("bytes_per_token", "perplexity", "delta")
    table = of_runs("Perplexity against bytes", runs, [c for c in COLUMNS if c.field in fields])
    entries = (
        Entry("label", "rung"), Entry("bytes_per_token", "MB / token", words.megabytes),
        Entry("perplexity", "perplexity", words.fixed),
    )  # fmt: skip
    if rungs:
        table += listing("Rungs of the ladder", "sections.ladder.rungs", ladder["rungs"], entries)
    if exempt:
        entries = (Entry("label", "left dense"), *entries[1:])
        table += listing("Layers left dense", "sections.sensitivity.exempt", sensitivity["exempt"], entries)
    figure = {"data": traces, "layout": frame}
    return [Panel("plot-bytes", "Perplexity against attention bytes", note, figure, table)]


def _note(runs: list[Json], points: list[Json], dense: Json | None) -> tuple[str, Json]:
    missing = [run["label"] for run in runs if run not in points and run is not dense]
    note = "Dashed: dense. Lower is better." + (f" Not drawn: {', '.join(missing)}." if missing else "")
    ys = [run["perplexity"] for run in runs]
    if min(ys) > 0 and max(ys) > 4 * min(ys):
        return note + " The perplexity axis is logarithmic.", {"type": "log", "dtick": "D1"}
    return note, {}


def _level(dense: Json, ends: list[float]) -> Json:
    return {
        "type": "scatter", "mode": "lines", "name": "dense", "meta": "dense", "x": ends,
        "y": [dense["perplexity"]] * 2, "line": {"color": family_color("dense"), "dash": "dash", "width": 2},
        "text": [_all_numbers(dense)] * 2, "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _series(look: Look, points: list[Json], field: str, unit: float) -> Json:
    mine = sorted((run for run in points if run["family"] == look.key), key=lambda run: run[field])
    # Two variants at one budget are not a curve; joining them would draw a cliff that nobody measured.
    curve = len(mine) > 1 and len({run["k"] for run in mine}) == len(mine)
    return {
        "type": "scatter", "mode": "lines+markers" if curve else "markers", "name": esc(look.label), "meta": look.key,
        "x": [run[field] / unit for run in mine], "y": [run["perplexity"] for run in mine],
        "line": {"color": look.color, "width": 2.5},
        "marker": {"color": look.color, "size": 11, "symbol": look.symbol},
        "text": [_all_numbers(run) for run in mine], "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _all_numbers(run: Json) -> str:
    """Every number of the summary, for the hover. plotly reads markup in texts, so it gets escaped ones."""
    shown: list[tuple[str, Any]] = [(c.title, c.show(run[c.field])) for c in COLUMNS if run.get(c.field) is not None]
    return "<br>".join([f"<b>{esc(run['label'])}</b>", *(f"{title}: {esc(value)}" for title, value in shown)])
