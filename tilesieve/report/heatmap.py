"""A heat map and its matrix: one list of values, drawn and written."""

from collections.abc import Callable, Sequence
from typing import Any

from tilesieve.report.figure import counted, layout
from tilesieve.report.palette import DIVERGING, SEQUENTIAL
from tilesieve.report.tables import matrix
from tilesieve.report.tidy import Json

Values = Sequence[Sequence[float | None]]


def heat(
    x: str, y: str, across: Sequence[Any], down: Sequence[Any], values: Values, *, unit: str = "", signed: bool = False,
    low: float | None = None, high: float | None = None, height: int = 380, labels: bool = False, shown: str = ".4f",
) -> Json:  # fmt: skip
    """values[row][column] as colours, the first row at the top. With `labels` the axes are words, else integers.

    A signed map puts nought in the middle of its scale; others run from `low` to `high` or over what is there.
    """
    known = [value for row in values for value in row if value is not None]
    if signed:
        high = max((abs(value) for value in known), default=0) or 1.0
        low = -high
    low = min(known, default=0.0) if low is None else low
    high = max(known, default=1.0) if high is None else high
    scale = DIVERGING if signed else SEQUENTIAL
    words = {"type": "category", "tickangle": 0} if labels else {}
    trace = {
        "type": "heatmap", "x": list(across), "y": list(down), "z": [list(row) for row in values],
        "zmin": low, "zmax": high if high > low else low + 1, "colorscale": [list(stop) for stop in scale],
        "xgap": int(len(across) < 20), "ygap": int(len(down) < 40 and len(across) < 20), "hoverongaps": False,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 1, "xpad": 6, "nticks": 6, "exponentformat": "none"},
        "hovertemplate": f"{x} %{{x}}, {y} %{{y}}<br>%{{z:{shown}}}{unit}<extra></extra>",
    }  # fmt: skip
    plain = {"showgrid": False, "showline": False, "visible": bool(known)}
    empty = {} if known else {"annotations": [{
        "text": "not measured for this run", "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False,
    }]}  # fmt: skip
    return {
        "data": [trace],
        "layout": layout(
            x, y, height, xaxis={**plain, **(words or counted(across))},
            yaxis={**plain, "autorange": "reversed", **(words or counted(down))}, **empty,
        ),
    }  # fmt: skip


def layers_by_heads(
    items: Sequence[Json], key: str, path: Callable[[int, int], str], caption: str, *, signed: bool = False,
    show: Callable[[Any], str], run: str = "",
) -> tuple[Json, str] | None:  # fmt: skip
    """The figure and the matrix of a list per layer with a number per head; None where there is no such number."""
    rows = [(at, item) for at, item in enumerate(items) if item[key]]
    if not rows:
        return None
    heads = list(range(max(len(item[key]) for _, item in rows)))
    layers = [item["layer"] if item["layer"] is not None else at for at, item in rows]
    values = [item[key] for _, item in rows]
    height = max(240, min(560, 110 + 14 * len(layers)))
    figure = heat("head", "layer", heads, layers, values, signed=signed, height=height)
    titles = [str(layer) for layer in layers]
    return figure, matrix(
        caption, "layer", [f"head {at}" for at in heads], titles, values, lambda i, j: path(rows[i][0], j), show, run
    )
