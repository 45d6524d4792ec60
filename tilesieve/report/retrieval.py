"""Retrieval: is a fact that was said once, long ago, still found?"""

from collections.abc import Callable
from typing import Any

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Choice, Panel
from tilesieve.report.frame import Group, Section, aside
from tilesieve.report.heatmap import heat
from tilesieve.report.tables import Entry, listing, matrix
from tilesieve.report.tidy import Json

HELD = "Share of (layer, head, answer token) whose selection holds the position to copy from."
# field, heading, caption, low end of the scale, high end, how a number is shown
MEASURES: tuple[tuple[str, str, str, float | None, float | None, Callable[[Any], str]], ...] = (
    ("right", "Found", "Share of the true answer's tokens that come first. 1: always found.", 0, 1, digits(2)),
    ("held", "Held", HELD, 0, 1, digits(3)),
    ("logprob", "Log-probability", "Mean nats per true token; nearer to 0 is better.", None, 0, digits(3)),
)


def section(study: Json) -> Section:
    """Depth by length, a run at a time, and the case built to break block selection."""
    part = study["sections"]["retrieval"]
    runs = [(at, run) for at, run in enumerate(part["runs"]) if run["cells"]]
    note = "A sentence is hidden in the text and asked for at its end. An empty cell was not measured."
    facts = [f"k = {words.whole(part['k'])}"] if part["k"] is not None else []
    if len(part["ks"]) > 1:
        facts = [f"k = {', '.join(map(words.whole, part['ks']))} for the lengths from the shortest on"]
    facts += [f"{words.many(part['samples'], 'sample')} a cell"] if part["samples"] is not None else []
    facts += [f"an answer of {words.many(part['needle_tokens'], 'token')}"] if part["needle_tokens"] is not None else []
    asked = f"Hidden: “{part['needle']}”." if part["needle"] else ""
    start = begin([run for _, run in runs])
    panels = [panel for measure in MEASURES if (panel := _map(part, runs, measure, start))]
    return Section("retrieval", "Retrieval", note if runs else "", (
        aside(asked, f"Measured with {', '.join(facts)}." if facts else "") if runs else "",
        aside(f"Not measured: {part['note']}.") if part["note"] and not runs else "",
        Group(panels, pick="run", start=start), constructed(part["constructed"]),
    ))  # fmt: skip


def begin(runs: list[Json]) -> int:
    """The run to open on: dense holds everything and mostly finds it, so the first run that fails to hold something."""
    sparse = [at for at, run in enumerate(runs) if "dense" not in (run["name"], run["label"])]
    failing = (at for at in sparse if any(cell["held"] not in (None, 1) for cell in runs[at]["cells"]))
    return next(failing, sparse[0] if sparse else 0)


def axes(part: Json, runs: list[Json]) -> tuple[list[Any], list[Any]]:
    """Lengths and depths: those the study names, or those its cells have."""
    cells = [cell for run in runs for cell in run["cells"]]
    found = [
        part[f"{key}s"] or sorted({cell[key] for cell in cells if cell[key] is not None}) for key in ("length", "depth")
    ]
    return found[0], found[1]


def grid(run: Json, lengths: list[Any], depths: list[Any], key: str) -> list[list[tuple[int, Any]]]:
    """(place in the list of cells, value) by depth and length; place -1 where there is no cell."""
    place = {(cell["length"], cell["depth"]): at for at, cell in enumerate(run["cells"])}
    return [
        [(at, run["cells"][at][key]) if (at := place.get((length, depth), -1)) >= 0 else (-1, None)
         for length in lengths] for depth in depths
    ]  # fmt: skip


def titles(lengths: list[Any], depths: list[Any]) -> tuple[list[str], list[str]]:
    """The axes in words: tokens, and per cent of the text from its start."""
    return [words.whole(length) for length in lengths], [words.percent(depth, 0) for depth in depths]


def _map(part: Json, runs: list[tuple[int, Json]], measure: tuple[Any, ...], start: int) -> Panel | None:
    key, heading, caption, low, high, show = measure
    lengths, depths = axes(part, [run for _, run in runs])
    across, down = titles(lengths, depths)
    known = [cell[key] for _, run in runs for cell in run["cells"] if cell[key] is not None]
    if not known or not across or not down:
        return None
    choices = []
    for at, run in runs:
        cells = grid(run, lengths, depths, key)
        values = [[value for _, value in row] for row in cells]
        figure = heat("length, tokens", "depth", across, down, values, height=300, labels=True, shown=".3f",
                      low=min(known) if low is None else low, high=high)  # fmt: skip
        label = run["label"] or run["name"] or f"run {at}"
        table = _table(label, heading, across, down, cells, f"sections.retrieval.runs.{at}.cells", key, show)
        choices.append(Choice(label, figure, table))
    return Panel(f"plot-retrieval-{key}", heading, caption, choices[start].figure, choices=tuple(choices))


def _table(
    label: str, heading: str, across: list[str], down: list[str], cells: list[list[tuple[int, Any]]], path: str,
    key: str, show: Callable[[Any], str],
) -> str:  # fmt: skip
    # A hole in the grid has no path: it ends its row's numbers where only dashes follow, or the table is a list.
    if all(at >= 0 for row in cells for at, _ in row):
        values = [[value for _, value in row] for row in cells]
        return matrix(f"{heading}, {label}", "depth", across, down, values,
                      lambda i, j: f"{path}.{cells[i][j][0]}.{key}", show)  # fmt: skip
    last = max((at for row in cells for at, _ in row), default=-1)
    items: list[Json] = [{"where": None, key: None} for _ in range(last + 1)]
    for depth, row in zip(down, cells, strict=True):
        for length, (at, value) in zip(across, row, strict=True):
            if at >= 0:
                items[at] = {"where": f"depth {depth}, length {length}", key: value}
    return listing(f"{heading}, {label}", path, items, (Entry("where", "cell"), Entry(key, heading, show)))


def constructed(part: Json) -> str:
    """The case built by hand: what matters is not among the best few of its own block."""
    rows = part["rows"]
    if not rows:
        return ""
    block = f"block of {words.whole(part['block'])}" if part["block"] is not None else "block"
    rank = f"number {words.whole(part['rank'])}" if part["rank"] is not None else "not the first"
    kept = [row["local_k"] for row in rows if row["kept"] and row["local_k"] is not None]
    least = f"It is kept from local k = {words.whole(min(kept))} on." if kept else "It is never kept."
    sentence = (
        f"The position that matters is only {rank} of its {block}, and an approximate top-k keeps the best local k of "
        f"each block. {least} The error is that of the attention output, relative to exact selection."
    )
    entries = (
        Entry("local_k", "local k", words.whole), Entry("kept", "kept", words.yes),
        Entry("error", "error against exact", words.short_number),
    )  # fmt: skip
    table = listing("The constructed case", "sections.retrieval.constructed.rows", rows, entries)
    return f'<h3 class="apart">A case built to be missed</h3>{aside(sentence)}{table}'
