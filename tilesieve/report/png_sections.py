"""Pictures of the hunt: ladder, retrieval, sensitivity, timeline, overlap, reuse, latent."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tilesieve.report import words
from tilesieve.report.ladder import ALONE, OWN, SIDE, TOTAL, floors, title
from tilesieve.report.overlap import names
from tilesieve.report.palette import DIVERGING, SEQUENTIAL, family_color, series
from tilesieve.report.png_style import INK, SOFT, by_layer, curve, gaps, headline, model
from tilesieve.report.retrieval import axes as retrieval_axes
from tilesieve.report.retrieval import grid, titles
from tilesieve.report.reuse import RULES, rule_of
from tilesieve.report.sensitivity import where
from tilesieve.report.tidy import Json


def ladder(study: Json) -> Figure | None:
    """A waterfall: a rung's bar begins where the rungs before it ended."""
    part = study["sections"]["ladder"]
    rungs = [(at, rung) for at, rung in enumerate(part["rungs"]) if rung["own"] is not None]
    if not rungs:
        return None
    figure = Figure(figsize=(10, 1.6 + 0.5 * (len(rungs) + 1)), layout="constrained")
    axes = figure.subplots()
    headline(figure, f"{model(study)}: what each rung of the ladder loses")
    base = floors([rung for _, rung in rungs])
    alone = any(rung["alone"] is not None for _, rung in rungs)
    high = 0.36 if alone else 0.6
    for row, ((_, rung), floor) in enumerate(zip(rungs, base, strict=True)):
        look = SIDE if rung["side"] else OWN
        hatch = "///" if rung["side"] else None
        axes.barh(row - (0.19 if alone else 0), rung["own"], left=floor, height=high, label=look.label, hatch=hatch,
                  color="white" if hatch else look.color, edgecolor=look.color)  # fmt: skip
        if rung["alone"] is not None:
            axes.barh(row + 0.19, rung["alone"], left=floor, height=high, color=ALONE.color, label=ALONE.label)
        end = max(floor, floor + rung["own"], floor + (rung["alone"] or 0))
        axes.annotate(words.signed(rung["own"]), (end, row), xytext=(6, 0), textcoords="offset points", va="center",
                      fontsize=10)  # fmt: skip
    labels = [title(rung, at) for at, rung in rungs]
    if part["total"] is not None:
        labels.append("all rungs")
        axes.barh(len(rungs), part["total"], height=0.6, color=TOTAL.color)
        axes.annotate(words.signed(part["total"]), (max(part["total"], 0), len(rungs)), xytext=(6, 0),
                      textcoords="offset points", va="center", fontsize=10)  # fmt: skip
    _rows(axes, labels, "nats per token above dense")
    once = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower left", ncols=3, fontsize=10)
    return figure


def retrieval(study: Json) -> Figure | None:
    """A map per run: depth by length, share found."""
    part = study["sections"]["retrieval"]
    runs = _telling([(at, run) for at, run in enumerate(part["runs"])])
    lengths, depths = retrieval_axes(part, [run for _, run in runs])
    if not runs or not lengths or not depths:
        return None
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    headline(figure, f"{model(study)}: is the hidden sentence found?")
    panels = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    across, down = titles(lengths, depths)
    for axes, (at, run) in zip(panels, runs, strict=True):
        values = [[value for _, value in row] for row in grid(run, lengths, depths, "right")]
        image = _image(axes, values, low=0, high=1)
        axes.set_title(words.short(run["label"] or run["name"] or f"run {at}", 90 // len(runs)), fontsize=11)
        axes.set_xticks(range(len(across)), across, fontsize=10)
        axes.set_yticks(range(len(down)), down)
        axes.set_xlabel("length, tokens")
    panels[0].set_ylabel("depth")
    figure.colorbar(image, ax=list(panels), label="share of the answer that comes first", shrink=0.9)
    return figure


def _telling(runs: list[tuple[int, Json]], most: int = 4) -> list[tuple[int, Json]]:
    """The first run, which is dense as a rule, and those that find least, in their order."""

    def found(run: Json) -> list[float]:
        return [cell["right"] for cell in run["cells"] if cell["right"] is not None]

    runs = [(at, run) for at, run in runs if found(run)]
    worst = sorted(runs[1:], key=lambda entry: sum(found(entry[1])) / len(found(entry[1])))[: most - 1]
    return runs[:1] + sorted(worst, key=lambda entry: entry[0])


def sensitivity(study: Json) -> Figure | None:
    """The map of costs, and the worst heads by name."""
    part = study["sections"]["sensitivity"]
    rows = [(at, row) for at, row in enumerate(part["layers"]) if any(v is not None for v in row["heads"])]
    ranked = [row for row in part["ranked"] if row["cost"] is not None][:12]
    if not rows and not ranked:
        return None
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    headline(figure, f"{model(study)}: which heads pay for being sparse")
    panels = list(figure.subplots(1, 2 if rows and ranked else 1, squeeze=False)[0])
    if rows:
        axes = panels.pop(0)
        values = [row["heads"] for _, row in rows]
        top = max((abs(v) for row in values for v in row if v is not None), default=0) or 1.0
        image = _image(axes, values, low=-top, high=top, signed=True)
        layers = [row["layer"] if row["layer"] is not None else at for at, row in rows]
        _ticks(axes, "y", layers)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True, min_n_ticks=1))
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
        axes.set_title("Cost, nats per token")
        figure.colorbar(image, ax=axes, shrink=0.9)
    if ranked:
        axes = panels.pop(0)
        axes.set_title("Worst first")
        axes.barh(range(len(ranked)), [row["cost"] for row in ranked], color=OWN.color, height=0.62)
        _rows(axes, [where(row["layer"], row["head"]) for row in ranked], "nats per token")
    return figure


def timeline(study: Json) -> Figure | None:
    """Up to three looks: one run's shared sets in layers far apart, or whatever there is."""
    looks = study["timeline"]
    if not looks:
        return None
    first = [look for look in looks if (look["run"], look["head"]) == (looks[0]["run"], looks[0]["head"])]
    chosen = first if len(first) <= 3 else [first[0], first[len(first) // 2], first[-1]]
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    headline(figure, f"{model(study)}: where it looked")
    by_name = {run["name"]: run for run in study["runs"]}
    for axes, look in zip(figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0], chosen, strict=True):
        run = by_name.get(look["run"], {"label": look["run"], "family": "other"})
        count = -(-look["length"] // look["bin"])
        columns = [[(int(cells[b // 4], 16) >> (3 - b % 4)) & 1 if b // 4 < len(cells) else 0 for b in range(count)]
                   for cells in look["cells"]]  # fmt: skip
        grid_ = [[column[b] or float("nan") for column in columns] for b in range(count)]
        queries = look["queries"]
        axes.pcolormesh(_edges(queries), [b * look["bin"] for b in range(count + 1)], grid_,
                        cmap=ListedColormap([family_color(run["family"])]), rasterized=True)  # fmt: skip
        axes.plot([queries[0], queries[-1]], [queries[0], queries[-1]], color=INK, linewidth=1)
        head = "" if look["head"] in (None, -1) else f", head {look['head']}"
        axes.set_title(f"{words.short(run['label'], 24)}\nlayer {words.whole(look['layer'])}{head}", fontsize=11)
        near = "" if look["near"] is None else f"\n{words.percent(look['near'], 0)} of the picks lie close behind"
        axes.set_xlabel(f"query position{near}")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        axes.grid(visible=False)
    figure.axes[0].set_ylabel("key position selected")
    return figure


def overlap(study: Json) -> Figure | None:
    """Layer against layer, and a row against the rows before it."""
    part = study["overlaps"]
    values = part["layers"]
    steps = [step for step in part["steps"] if step["lag"] is not None and step["overlap"] is not None]
    drawn = any(values)
    if not drawn and not steps:
        return None
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    headline(figure, f"{model(study)}: how far selections agree")
    panels = list(figure.subplots(1, 2 if drawn and steps else 1, squeeze=False)[0])
    if drawn:
        axes = panels.pop(0)
        image = _image(axes, values, low=0, high=1)
        ids = names(part, max(len(values), max(map(len, values))))
        _ticks(axes, "y", ids[: len(values)])
        _ticks(axes, "x", ids[: max(map(len, values))])
        axes.set_title("Layer against layer")
        axes.set_xlabel("in layer")
        axes.set_ylabel("picks of layer")
        figure.colorbar(image, ax=axes, shrink=0.9)
    if steps:
        axes = panels.pop(0)
        axes.set_title("With the row so many rows before")
        axes.plot([step["lag"] for step in steps], [step["overlap"] for step in steps], marker="o", color=OWN.color)
        if min(step["lag"] for step in steps) > 0:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.whole(value)))
        axes.set_ylim(0, 1)
        axes.set_xlabel("rows before")
        axes.set_ylabel("overlap, mean over layers")
    return figure


def reuse(study: Json) -> Figure | None:
    """The loss against the share of rows that select."""
    rows = [r for r in study["sections"]["reuse"]["runs"] if r["rate"] is not None and r["delta"] is not None]
    if not rows:
        return None
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    axes = figure.subplots()
    headline(figure, f"{model(study)}: how seldom may one select?")
    for look in RULES:
        mine = sorted((row for row in rows if rule_of(row) == look.key), key=lambda row: row["rate"])
        if mine:
            curve(axes, look, [row["rate"] for row in mine], [row["delta"] for row in mine], markersize=8,
                  **({"linestyle": ""} if look.key == "named" else {}))  # fmt: skip
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.percent(value, 0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.signed_percent(value, 1)))
    axes.set_xlabel("share of rows that select")
    axes.set_ylabel("perplexity against dense")
    axes.set_xlim(left=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=10)
    return figure


def latent(study: Json) -> Figure | None:
    """Perplexity against ratio, and the error by layer at the middle ratio."""
    part = study["sections"]["latent"]
    rows = [row for row in part["rows"] if row["ratio"] is not None and row["perplexity"] is not None]
    if not rows:
        return None
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    headline(figure, f"{model(study)}: what a smaller K and V loses")
    places = list(dict.fromkeys(row["where"] or "latent" for row in rows))
    ratio = sorted(row["ratio"] for row in rows)[len(rows) // 2]
    told = [row for row in rows if row["ratio"] == ratio and row["layers"]]
    panels = figure.subplots(1, 2 if told else 1, squeeze=False)[0]
    looks = series([(place, place) for place in places])
    for place, look in looks.items():
        mine = sorted((row for row in rows if (row["where"] or "latent") == place), key=lambda row: row["ratio"])
        xs, ys = [row["ratio"] for row in mine], [row["perplexity"] for row in mine]
        curve(panels[0], look, xs, ys, markersize=8)
    panels[0].set_xlabel("ratio, times fewer numbers")
    panels[0].set_ylabel("perplexity")
    panels[0].set_title("Perplexity")
    if told:
        panels[1].set_title(f"Error by layer at {words.short_number(ratio)}×")
        by_layer(panels[1])
        for row in told:
            xs = [layer["layer"] for layer in row["layers"]]
            curve(panels[1], looks[row["where"] or "latent"], xs, [layer["error"] for layer in row["layers"]])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=10)
    return figure


def _image(axes: Axes, values: list[list[Any]], *, low: float, high: float, signed: bool = False) -> Any:
    """A heat map in the page's colours; ragged rows and missing cells stay white."""
    wide = max(map(len, values))
    filled = [gaps(row) + [float("nan")] * (wide - len(row)) for row in values]
    stops = [(at, "#f2f3f5" if tone.startswith("var") else tone) for at, tone in (DIVERGING if signed else SEQUENTIAL)]
    colors = LinearSegmentedColormap.from_list("page", stops)
    axes.grid(visible=False)
    return axes.imshow(filled, vmin=low, vmax=high, cmap=colors, aspect="auto", interpolation="nearest")


def _ticks(axes: Axes, side: str, ids: list[Any]) -> None:
    """About ten of the layers by their own numbers."""
    step = max(1, -(-len(ids) // 10))
    (axes.set_yticks if side == "y" else axes.set_xticks)(range(0, len(ids), step), [str(i) for i in ids[::step]])


def _rows(axes: Axes, labels: list[str], unit: str) -> None:
    axes.set_yticks(range(len(labels)), [words.short(label, 31) for label in labels], color=INK)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.axvline(0, color=SOFT, linewidth=0.8)
    axes.set_xlabel(unit)
    axes.margins(x=0.12)


def _edges(queries: list[int]) -> list[float]:
    """The borders between queries, for columns of uneven widths."""
    if len(queries) == 1:
        return [queries[0] - 0.5, queries[0] + 0.5]
    middle = [(a + b) / 2 for a, b in zip(queries, queries[1:], strict=False)]
    return [queries[0] - (middle[0] - queries[0]), *middle, queries[-1] + (queries[-1] - middle[-1])]
