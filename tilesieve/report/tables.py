"""Every number of the study, readable without a single script."""

from tilesieve.report import words
from tilesieve.report.columns import COLUMNS, Column
from tilesieve.report.markup import cell, derived, esc, head, raw_head, swatch, table
from tilesieve.report.tidy import Json
from tilesieve.report.verdict import NEAR


def summary(runs: list[Json]) -> str:
    """A row per run, a column per number."""
    heads = head("run") + "".join(head(column.title) for column in COLUMNS)
    return table("All runs", [heads], [_name(run) + "".join(_entry(run, c) for c in COLUMNS) for run in runs])


def by_layer(runs: list[Json]) -> str:
    """A row per layer, three columns per run."""
    runs = [run for run in runs if run["layers"]]
    if not runs:
        return ""
    keys = (("mass_mean", "mean"), ("mass_worst", "worst"), ("overlap", "overlap"))
    groups = raw_head("layer", "col") + "".join(head(run["label"], "colgroup", len(keys)) for run in runs)
    titles = "<td></td>" + "".join(head(t) for _ in runs for _, t in keys)
    rows = []
    for at in range(max(len(run["layers"]) for run in runs)):
        numbers = (layer["layer"] for run in runs for layer in run["layers"][at : at + 1])
        row = head(str(next(numbers, at)), "row")
        for run in runs:
            layer = run["layers"][at] if at < len(run["layers"]) else None
            for key, _ in keys:
                value = layer[key] if layer else None
                field = f"layers.{at}.{key}"
                row += cell(words.fixed(value, 4), run["name"], field, value) if layer else derived(words.NONE)
        rows.append(row)
    return table("Attention mass and overlap by layer", [groups, titles], rows)


def by_stage(runs: list[Json]) -> str:
    """A row per operator call site: what was measured, and the rates that follow from it."""
    titles = ("run", "phase", "stage", "op", "calls", "seconds", "GFLOP", "MB at least", "GB/s", "GFLOP/s")
    heads = [head(title, css="word" if at < 4 else "") for at, title in enumerate(titles)]
    rows = []
    for run in runs:
        for at, stage in enumerate(run["stages"]):
            shown = {
                "calls": words.whole(stage["calls"]),
                "seconds": words.fixed(stage["seconds"], 4),
                "flops": words.fixed(_scaled(stage["flops"], 1e9), 3),
                "bytes_min": words.megabytes(stage["bytes_min"]),
            }
            row = _name(run) + "".join(f'<td class="word">{esc(stage[key])}</td>' for key in ("phase", "stage", "op"))
            row += "".join(cell(s, run["name"], f"stages.{at}.{key}", stage[key]) for key, s in shown.items())
            for key in ("bytes_min", "flops"):
                row += derived(words.fixed(_scaled(words.ratio(stage[key], stage["seconds"]), 1e9), 3))
            rows.append(row)
    return table("Time per stage", ["".join(heads)], rows) if rows else ""


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
