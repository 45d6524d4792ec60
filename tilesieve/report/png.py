"""The same study as still pictures, 1600 pixels wide and meant to be read at half of that."""

import io
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tilesieve.report import words
from tilesieve.report.palette import FAMILY, family_color, family_looks, run_looks
from tilesieve.report.tidy import Json, dense_of, tidy
from tilesieve.report.timeline import nearness, thinned
from tilesieve.report.verdict import NEAR

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


def pictures(study: Json) -> Iterator[tuple[str, bytes]]:
    """File name and PNG bytes of each picture that has something to show."""
    study = tidy(study)
    # rc_context and a bare Figure: no pyplot, so no window, no backend choice and no state left behind.
    style: Any = dict(STYLE)  # matplotlib's stubs list every key it knows, and want no other mapping
    for name, draw in (
        ("perplexity-vs-budget.png", _budget),
        ("mass-by-layer.png", _mass),
        ("timeline.png", _timeline),
    ):
        sink = io.BytesIO()
        with matplotlib.rc_context(style):
            figure = draw(study)
            if figure is not None:
                figure.savefig(sink, format="png", dpi=DPI, metadata={"Software": None})
        # Outside the block: a generator pauses here, and the caller must not meet our settings meanwhile.
        if figure is not None:
            yield name, sink.getvalue()


def _budget(study: Json) -> Figure | None:
    """README's first picture: what a budget loses, left, and what it saves, right."""
    runs = [run for run in study["runs"] if run["perplexity"] is not None]
    points = [run for run in runs if run["k"] and run["family"] != "dense"]
    dense = dense_of(runs)
    if not points and not dense:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    read = [run for run in runs if run["bytes_per_token"] is not None]
    left, *right = figure.subplots(1, 2, width_ratios=(1.15, 1), squeeze=False)[0] if read else [figure.subplots()]
    _headline(figure, f"{_model(study)}: what a smaller budget loses, and what it saves")
    _lost(left, points, dense)
    for axes in right:
        _saved(axes, read)
    return figure


def _lost(axes: Axes, points: list[Json], dense: Json | None) -> None:
    axes.set_title("Perplexity, lower is better")
    for look in family_looks(points):
        mine = sorted((run for run in points if run["family"] == look.key), key=lambda run: run["k"])
        curve = len(mine) > 1 and len({run["k"] for run in mine}) == len(mine)
        axes.plot(
            [run["k"] for run in mine], [run["perplexity"] for run in mine], marker=MARKERS[look.symbol],
            markersize=12 if look.symbol == "star" else 8, linestyle="-" if curve else "", linewidth=2.4,
            color=look.color, label=look.label, clip_on=False, zorder=3,
        )  # fmt: skip
        for run in (run for run in mine if run["delta"] is not None and look.key != "full"):
            # The best at its budget has room below, under its falling curve; the others have room to the right.
            best = run["perplexity"] == min(r["perplexity"] for r in points if r["k"] == run["k"])
            place, ha, va = ((-5, -6), "right", "top") if best else ((9, 1), "left", "center")
            axes.annotate(
                words.signed_percent(run["delta"], 1), (run["k"], run["perplexity"]), xytext=place, ha=ha, va=va,
                textcoords="offset points", fontsize=10, color=look.color,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip
    if dense:
        level = dense["perplexity"]
        axes.axhline(level, color=FAMILY["dense"], linestyle=(0, (5, 3)), linewidth=1.6, label=f"dense {level:.2f}")
        band = f"within {words.percent(NEAR, 0)} of dense"
        axes.axhspan(level, level * (1 + NEAR), color=FAMILY["full"], alpha=0.12, linewidth=0, label=band)
    values = [run["perplexity"] for run in points] + ([dense["perplexity"]] if dense else [])
    if min(values) > 0 and max(values) > 4 * min(values):
        axes.set_yscale("log")
    if points:
        budgets = sorted({run["k"] for run in points})
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(budgets))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.whole(value)))
        axes.set_xlim(min(budgets) / 2.6, max(budgets) * 1.5)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("budget k: key positions a query may read")
    axes.margins(y=0.12)
    # Above the axes: "best" looks for points to avoid and does not see their labels.
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.1), ncols=2, fontsize=10, handlelength=1.8)


def _saved(axes: Axes, runs: list[Json]) -> None:
    axes.set_title("Attention MB per decoded token")
    runs = sorted(runs, key=lambda run: run["bytes_per_token"])
    sizes = [run["bytes_per_token"] / 1e6 for run in runs]
    rows = range(len(runs))
    axes.barh(rows, sizes, color=[family_color(run["family"]) for run in runs], height=0.62)
    for row, run, size in zip(rows, runs, sizes, strict=True):
        less = (run["bytes_dense"] or 0) / run["bytes_per_token"] if run["bytes_per_token"] else 0
        note = words.fixed(size, 1) + (f"  {less:.1f}× less" if less > 1.05 else "")
        axes.annotate(note, (size, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10)
    axes.set_yticks(rows, [words.short(run["label"], 31) for run in runs], color=INK)
    axes.invert_yaxis()
    axes.set_xlim(0, max(sizes) * 1.22 or 1)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])


def _mass(study: Json) -> Figure | None:
    looks = run_looks(study["runs"])
    runs = [run for run in study["runs"] if any(layer["mass_mean"] is not None for layer in run["layers"])]
    if not runs:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    _headline(figure, f"{_model(study)}: attention mass kept by layer")
    for axes, key, title in zip(panels, ("mass_mean", "mass_worst"), ("Mean query", "Worst query"), strict=True):
        axes.set_title(title)
        axes.set_xlabel("layer")
        for run in runs:
            look = looks[run["name"]]
            # matplotlib leaves a gap at NaN, which is what a missing layer deserves.
            ys = [float("nan") if layer[key] is None else layer[key] for layer in run["layers"]]
            axes.plot(
                [layer["layer"] for layer in run["layers"]], ys, color=look.color, label=look.label, linewidth=1.8,
                linestyle=DASHES.get(look.dash, "-"), marker=MARKERS[look.symbol], markersize=3.5,
            )  # fmt: skip
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.percent(value, 0)))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=10)
    return figure


def _timeline(study: Json) -> Figure | None:
    looks = study["timeline"][:3]
    if not looks:
        return None
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    _headline(figure, f"{_model(study)}: where it looked")
    by_name = {run["name"]: run for run in study["runs"]}
    for axes, look in zip(figure.subplots(1, len(looks), sharey=True, squeeze=False)[0], looks, strict=True):
        shown = thinned(look, 20_000)
        xs = [query for query, picks in shown for _ in picks]
        run = by_name.get(look["run"], {"label": look["run"], "family": "other"})
        ys = [pick for _, picks in shown for pick in picks]
        axes.scatter(xs, ys, s=1.6, linewidths=0, color=family_color(run["family"]))
        ends = [look["queries"][0], look["queries"][-1]]
        axes.plot(ends, ends, color=FAMILY["dense"], linewidth=1)
        axes.set_title(f"{words.short(run['label'], 24)}, layer {look['layer']}")
        axes.set_xlabel(f"query position\n{nearness(look)}")
        axes.grid(visible=False)
    figure.axes[0].set_ylabel("key position selected")
    return figure


def _headline(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.012, ha="left", weight="bold", fontsize=14)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04)  # type: ignore[union-attr, call-arg]


def _model(study: Json) -> str:
    """The model's own name: a hub id without its owner."""
    return words.short(str(study["meta"]["model"] or "study").rstrip("/").rpartition("/")[2], 40)
