"""Pictures of the runs: what a budget loses and saves, and the mass kept by layer."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tilesieve.report import words
from tilesieve.report.budget import EXEMPT_LOOK, LADDER_LOOK, comparable, with_bytes
from tilesieve.report.palette import FAMILY, family_color, family_looks, run_looks
from tilesieve.report.png_style import INK, MARKERS, by_layer, curve, headline, model
from tilesieve.report.tidy import Json, dense_of
from tilesieve.report.verdict import NEAR


def budget(study: Json) -> Figure | None:
    """README's first picture: what a budget loses, left, and what it saves, right."""
    runs = [run for run in study["runs"] if run["perplexity"] is not None]
    points = [run for run in runs if run["k"] and run["family"] != "dense"]
    dense = dense_of(runs)
    if not points and not dense:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    read = [run for run in runs if run["bytes_per_token"] is not None]
    left, *right = figure.subplots(1, 2, width_ratios=(1.15, 1), squeeze=False)[0] if read else [figure.subplots()]
    headline(figure, f"{model(study)}: what a smaller budget loses, and what it saves")
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


def mass(study: Json) -> Figure | None:
    """Mean and worst mass, a line per run."""
    looks = run_looks(study["runs"])
    runs = [run for run in study["runs"] if any(layer["mass_mean"] is not None for layer in run["layers"])]
    if not runs:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    headline(figure, f"{model(study)}: attention mass kept by layer")
    for axes, key, title in zip(panels, ("mass_mean", "mass_worst"), ("Mean query", "Worst query"), strict=True):
        axes.set_title(title)
        by_layer(axes)
        for run in runs:
            ys = [layer[key] for layer in run["layers"]]
            curve(axes, looks[run["name"]], [layer["layer"] for layer in run["layers"]], ys, markersize=3.5)
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.percent(value, 0)))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=10)
    return figure


def by_bytes(study: Json) -> Figure | None:
    """What a byte buys: runs, and where they were measured on the same tokens, rungs and exempt layers."""
    runs = [run for run in study["runs"] if run["perplexity"] is not None]
    points = [run for run in runs if run["bytes_per_token"] and run["family"] != "dense"]
    if not points:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    axes = figure.subplots()
    headline(figure, f"{model(study)}: perplexity against attention bytes")
    for look in family_looks(points):
        mine = sorted((run for run in points if run["family"] == look.key), key=lambda run: run["bytes_per_token"])
        joined = len(mine) > 1 and len({run["k"] for run in mine}) == len(mine)
        curve(axes, look, [run["bytes_per_token"] / 1e6 for run in mine], [run["perplexity"] for run in mine],
              linestyle="-" if joined else "", markersize=9)  # fmt: skip
    for look, part, key in ((LADDER_LOOK, "ladder", "rungs"), (EXEMPT_LOOK, "sensitivity", "exempt")):
        rows = with_bytes(study["sections"][part][key])
        if rows and comparable(study["sections"][part], study["meta"]):
            curve(axes, look, [row["bytes_per_token"] / 1e6 for row in rows], [row["perplexity"] for row in rows],
                  linestyle="", markersize=8)  # fmt: skip
    dense = dense_of(runs)
    if dense:
        axes.axhline(dense["perplexity"], color=FAMILY["dense"], linestyle=(0, (5, 3)), linewidth=1.6, label="dense")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else ""))
    axes.set_xlabel("attention MB per decoded token")
    axes.set_ylabel("perplexity")
    figure.legend(loc="outside right upper", fontsize=10)
    return figure
