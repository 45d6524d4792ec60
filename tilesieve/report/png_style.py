"""What all still pictures share: sizes, type, headlines."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tilesieve.report import words
from tilesieve.report.palette import Look
from tilesieve.report.tidy import Json

INK, SOFT, LINE = "#1b2027", "#59616d", "#dfe3e8"
MARKERS = MappingProxyType({"none": "", "circle": "o", "diamond": "D", "square": "s", "star": "*", "triangle-up": "^"})
DASHES: Mapping[str, Any] = MappingProxyType(
    {"dash": (0, (5, 2)), "dot": (0, (1, 1.5)), "dashdot": "-.", "longdash": (0, (8, 2))}
)
# 10 inches at 160 dots: at 800 pixels one point of type is 1.1 pixels, so nothing is set below 10 points.
DPI = 160
STYLE: Mapping[str, Any] = MappingProxyType({
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 11, "text.color": INK,
    "axes.labelcolor": SOFT, "axes.edgecolor": LINE, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#eceff3", "axes.axisbelow": True,
    "xtick.color": SOFT, "ytick.color": SOFT, "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 12,
    "legend.frameon": False, "text.parse_math": False, "figure.facecolor": "white",
})  # fmt: skip


def headline(figure: Figure, text: str) -> None:
    """A title over the whole picture, to the left like a heading."""
    figure.suptitle(text, x=0.012, ha="left", weight="bold", fontsize=14)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04)  # type: ignore[union-attr, call-arg]


def model(study: Json) -> str:
    """The model's own name: a hub id without its owner."""
    return words.short(str(study["meta"]["model"] or "study").rstrip("/").rpartition("/")[2], 40)


def by_layer(axes: Axes) -> None:
    """Layers are counted: no tick between two of them."""
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))


def curve(axes: Axes, look: Look, xs: list[Any], ys: list[Any], **more: Any) -> None:
    """A series in its look; matplotlib leaves a gap at NaN, which is what a missing number deserves."""
    settings: dict[str, Any] = {
        "color": look.color, "label": look.label, "linewidth": 1.8, "linestyle": DASHES.get(look.dash, "-"),
        "marker": MARKERS[look.symbol], "markersize": 5, **more,
    }  # fmt: skip
    axes.plot(gaps(xs), gaps(ys), **settings)


def gaps(values: list[Any]) -> list[float]:
    """None as NaN."""
    return [float("nan") if value is None else value for value in values]
