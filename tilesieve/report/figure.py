"""What a figure is, and the plotly.js shapes that several questions share."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from tilesieve.report.markup import esc
from tilesieve.report.palette import Look
from tilesieve.report.tidy import Json

FONT = "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif"


@dataclass(frozen=True)
class Choice:
    """One position of a selector: what it is called, what is drawn, and the same in numbers."""

    label: str
    figure: Json
    table: str


@dataclass(frozen=True)
class Panel:
    """One figure: its place in the page, its heading, a sentence below it, what plotly.js draws, and its numbers."""

    id: str
    title: str
    caption: str
    figure: Json
    table: str = ""
    choices: tuple[Choice, ...] = ()
    wide: bool = False


def layout(
    x: str, y: str, height: int = 360, *, xaxis: Json | None = None, yaxis: Json | None = None, **more: Any
) -> Json:  # fmt: skip
    """The frame of every figure. It has no ink: that depends on the reader's ground."""
    axis = {"showline": True, "automargin": True, "fixedrange": False, "zeroline": False, "exponentformat": "none"}
    return {
        "height": height, "margin": {"l": 48, "r": 14, "t": 24, "b": 44}, "showlegend": False, "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font": {"family": FONT, "size": 12},
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, "title": {"text": x}, **(xaxis or {})},
        "yaxis": {**axis, "title": {"text": y, "standoff": 8}, **(yaxis or {})},
        **more,
    }  # fmt: skip


def counted(numbers: Sequence[int | float | None]) -> Json:
    """An axis of things one counts, like layers: ticks at integers only, about ten of them.

    Around a single one plotly would draw neighbours that do not exist.
    """
    known = [number for number in numbers if number is not None]
    lone = {"range": [known[0] - 0.5, known[0] + 0.5]} if len(set(known)) == 1 else {}
    span = max(known) - min(known) + 1 if known else 1
    step = next((step for step in (1, 2, 5, 10, 20, 50, 100) if span / step <= 12), ceil(span / 10))
    return {"tickmode": "linear", "tick0": 0, "dtick": step, "tickformat": "d", **lone}


def log_ticks(xs: Sequence[float], beyond: Sequence[float] = ()) -> Json:
    """On a log axis label the values themselves, unless two of them would print over each other on a phone.

    `beyond` are other values that the axis must reach.
    """
    ends = [x for x in (*xs, *beyond) if x > 0]
    apart = max(1.3, (max(ends) / min(ends)) ** (1 / 6.5)) if ends else 1.3
    kept: list[float] = []
    for x in sorted(set(xs)):
        if not kept or x > apart * kept[-1]:
            kept.append(x)
    return {"tickvals": kept, "ticktext": [f"{x:.3g}" if x < 100 else f"{x:,.0f}" for x in kept]}


def line(look: Look, xs: list[Any], ys: list[Any], hover: str, *, curve: bool = True, size: int = 7) -> Json:
    """A series with its own colour, dash and marker. `hover` is a plotly template, so it holds no foreign text."""
    return {
        "type": "scatter", "mode": "lines+markers" if curve else "markers", "name": esc(look.label), "meta": look.key,
        "x": xs, "y": ys, "line": {"color": look.color, "dash": look.dash, "width": 2},
        "marker": {"color": look.color, "size": size, "symbol": look.symbol},
        "hovertemplate": f"%{{fullData.name}}<br>{hover}<extra></extra>",
    }  # fmt: skip


def bars(look: Look, names: list[str], values: list[float | None], unit: str, **more: Any) -> Json:
    """Horizontal bars: names stay readable on a phone."""
    return {
        "type": "bar", "orientation": "h", "name": esc(look.label), "meta": look.key, "y": names, "x": values,
        "marker": {"color": look.color}, "hovertemplate": f"%{{fullData.name}}: %{{x:.4g}} {unit}<extra></extra>",
        **more,
    }  # fmt: skip


def named(names: list[str], labels: list[str], between: str = "") -> Json:
    """The axis of horizontal bars, from the top down. `names` must differ, `labels` need not.

    Labels that hold `between` are two labels, each with lines of its own.
    """
    parts = [label.split(between) if between else [label] for label in labels]
    ticks = [f"{esc(between.rstrip())}<br>".join(map(wrapped, part)) + " " for part in parts]
    return {
        "type": "category", "categoryorder": "array", "categoryarray": names[::-1], "tickmode": "array",
        "tickvals": names, "ticktext": ticks, "showgrid": False,
    }  # fmt: skip


def wrapped(label: str, width: int = 20) -> str:
    """A label in at most two lines, escaped: on a phone half of the plot would go to long names otherwise."""
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width and len(lines) < 2:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(esc(text if len(text) <= width else text[: width - 1] + "…") for text in lines)
