"""Tables: rows of things with names, and matrices. Every number carries its path in study.json."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilesieve.report import words
from tilesieve.report.columns import COST, QUALITY, Column
from tilesieve.report.markup import cell, derived, esc, head, raw_head, swatch, table
from tilesieve.report.tidy import Json
from tilesieve.report.verdict import NEAR

Show = Callable[[Any], str]


class Entry(NamedTuple):
    """A column of a listing: where the value lies, its title, how a number is shown; None for words.

    An optional one is left out where no item has it.
    """

    key: str
    title: str
    show: Show | None = None
    optional: bool = False


def listing(caption: str, path: str, items: Sequence[Json], entries: Sequence[Entry], run: str = "") -> str:
    """A row per item; the first entry heads the row. Items without anything to say are left out."""
    entries = [e for e in entries if not e.optional or any(item[e.key] is not None for item in items)]
    heads = "".join(head(entry.title, css="" if entry.show else "word") for entry in entries)
    rows = []
    for at, item in enumerate(items):
        if all(item[entry.key] is None for entry in entries):
            continue
        rows.append("".join(_entry_of(item, e, f"{path}.{at}.{e.key}", run, not n) for n, e in enumerate(entries)))
    return table(caption, [heads], rows) if rows else ""


def _entry_of(item: Json, entry: Entry, path: str, run: str, first: bool) -> str:
    value = item[entry.key]
    if entry.show is None:
        text = words.NONE if value is None else str(value)
        return head(text, "row") if first else f'<td class="word">{esc(text)}</td>'
    if first:
        # A number may head a row too, like a layer: it is then a heading that carries its value.
        return cell(entry.show(value), run, path, value, "first")
    return cell(entry.show(value), run, path, value)


def matrix(
    caption: str, corner: str, across: Sequence[str], down: Sequence[str], values: Sequence[Sequence[Any]],
    path: Callable[[int, int], str], show: Show, run: str = "",
) -> str:  # fmt: skip
    """A heat map in numbers: `path` says where the value of (row, column) lies. Ragged rows are fine."""
    rows = []
    for i, (title, row) in enumerate(zip(down, values, strict=True)):
        cells = (cell(show(value), run, path(i, j), value) for j, value in enumerate(row))
        rows.append(head(title, "row") + "".join(cells) + derived(words.NONE) * (len(across) - len(row)))
    heads = head(corner) + "".join(head(title) for title in across)
    return table(caption, [heads], rows) if rows and across else ""


def summary(runs: list[Json]) -> str:
    """Two tables, what is lost and what it costs: one with every column is wider than a screen."""
    if not runs:
        return ""
    return "".join(
        f"<h3>{title}</h3>" + of_runs(title, runs, columns)
        for title, columns in (("What is lost", QUALITY), ("What it costs and says", COST))
    )


def of_runs(title: str, runs: list[Json], columns: Sequence[Column]) -> str:
    """A row per run, a column per number."""
    heads = head("run") + "".join(head(column.title) for column in columns)
    return table(title, [heads], [_name(run) + "".join(_entry(run, c) for c in columns) for run in runs])


def by_layer(runs: list[Json], key: str, title: str) -> str:
    """A row per layer, a column per run."""
    runs = [run for run in runs if run["layers"]]
    heads = head("layer") + "".join(head(run["label"]) for run in runs)
    rows = []
    for at in range(max((len(run["layers"]) for run in runs), default=0)):
        numbers = (layer["layer"] for run in runs for layer in run["layers"][at : at + 1])
        row = head(str(next(numbers, at)), "row")
        for run in runs:
            layer = run["layers"][at] if at < len(run["layers"]) else None
            value = layer[key] if layer else None
            field = f"layers.{at}.{key}"
            row += cell(words.fixed(value, 4), run["name"], field, value) if layer else derived(words.NONE)
        rows.append(row)
    return table(title, [heads], rows) if rows else ""


def by_stage(runs: list[Json], phase: str) -> str:
    """A row per operator call site of a phase: what was measured, and the rates that follow from it."""
    titles = ("run", "stage", "op", "calls", "seconds", "GFLOP", "MB at least", "GB/s", "GFLOP/s")
    heads = [head(title, css="word" if at < 3 else "") for at, title in enumerate(titles)]
    rows = []
    for run in runs:
        for at, stage in enumerate(run["stages"]):
            if str(stage["phase"]) != phase:
                continue
            shown = {
                "calls": words.whole(stage["calls"]),
                "seconds": words.fixed(stage["seconds"], 4),
                "flops": words.fixed(_scaled(stage["flops"], 1e9), 3),
                "bytes_min": words.megabytes(stage["bytes_min"]),
            }
            row = _name(run) + "".join(f'<td class="word">{esc(stage[key])}</td>' for key in ("stage", "op"))
            row += "".join(cell(s, run["name"], f"stages.{at}.{key}", stage[key]) for key, s in shown.items())
            for key in ("bytes_min", "flops"):
                row += derived(words.fixed(_scaled(words.ratio(stage[key], stage["seconds"]), 1e9), 3))
            rows.append(row)
    return table(f"Time per stage, {phase}", ["".join(heads)], rows) if rows else ""


def _name(run: Json) -> str:
    return raw_head(swatch(run["family"]) + esc(run["label"]), "row")


def _entry(run: Json, column: Column) -> str:
    if column.field == "share":
        return derived(column.show(words.ratio(run["bytes_per_token"], run["bytes_dense"])))
    outer, _, inner = column.field.rpartition(".")
    holder = run[outer] if outer else run
    if holder is None:
        return derived(words.NONE)
    value = holder[inner]
    shown = column.show(value)
    if inner == "diverges_at" and value is None:
        shown = words.NONE if run["family"] == "dense" else "same"
    far = inner == "delta" and value is not None and value > NEAR
    return cell(shown, run["name"], column.field, value, "far" if far else "")


def _scaled(value: int | float | None, unit: float) -> float | None:
    return None if value is None else value / unit
