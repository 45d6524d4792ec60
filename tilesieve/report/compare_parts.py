"""The numbers of two studies beside each other, and their difference: runs, rungs, retrieval, findings."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.figure import Choice, Panel, bars, layout, named
from tilesieve.report.frame import Group, Section, aside, folded
from tilesieve.report.heatmap import heat
from tilesieve.report.ladder import title
from tilesieve.report.markup import cell, derived, esc, head, raw_head, table
from tilesieve.report.palette import Look
from tilesieve.report.retrieval import MEASURES, axes, begin, grid, titles
from tilesieve.report.tidy import Json

A = Look("a", "A", "#3b7ff0", symbol="bar")
B = Look("b", "B", "#d9700d", symbol="bar")
ARROW = " → "


class Number(NamedTuple):
    """A number that both may have: how it is shown, and how its difference is."""

    key: str
    title: str
    show: Callable[[Any], str]
    change: Callable[[Any], str]


def _megabytes(value: float | None) -> str:
    return words.NONE if value is None else words.signed(value / 1e6, 2)


FOUR = digits(4)
LOST = (
    Number("perplexity", "perplexity", words.fixed, lambda v: words.signed(v, 2)),
    Number("delta", "Δ dense", words.signed_percent, words.signed_percent),
    Number("kl_mean", "KL mean", FOUR, words.signed),
)
KEPT = (
    Number("mass_mean", "mass mean", FOUR, words.signed), Number("top1", "top-1", FOUR, words.signed),
    Number("bytes_per_token", "MB / token", words.megabytes, _megabytes),
)  # fmt: skip
RUNG = (Number("own", "own, nats", words.signed, words.signed), *LOST[:1], KEPT[2])
# label, the item of A with its path, the item of B with its path
Pair = tuple[str, tuple[Json, str] | None, tuple[Json, str] | None]


def runs(one: Json, two: Json) -> Section:
    """Runs by name; those of one study alone stand with dashes."""
    pairs = _paired(
        [(run["name"], run["label"], run, f"a.runs.{run['at']}") for run in one["runs"]],
        [(run["name"], run["label"], run, f"b.runs.{run['at']}") for run in two["runs"]],
    )
    panel = _bars("plot-compare-delta", "Loss against dense", pairs, "delta", "Δ dense", {"tickformat": "+.0%"})
    tables = "".join(
        f"<h3>{name}</h3>{_table(name, pairs, numbers)}"
        for name, numbers in (("What is lost", LOST), ("What is kept, and what it costs", KEPT))
    )
    note = "Runs of the same name. The change is B less A."
    return Section("runs", "Runs", note, (Group([panel] if panel else [], (A, B)), tables if pairs else ""))


def ladder(one: Json, two: Json) -> Section:
    """Rungs by name."""
    sides = [
        [(rung["name"] or title(rung, at), title(rung, at), rung, f"{side}.sections.ladder.rungs.{at}")
         for at, rung in enumerate(study["sections"]["ladder"]["rungs"])]
        for side, study in (("a", one), ("b", two))
    ]  # fmt: skip
    pairs = _paired(*sides)
    if not pairs:
        return Section("ladder", "Ladder", "", ())
    panel = _bars("plot-compare-ladder", "What each rung adds", pairs, "own", "nats per token", {})
    totals = [study["sections"]["ladder"]["total"] for study in (one, two)]
    said = (
        "" if None in totals else f"All rungs together: {words.signed(totals[0])} in A, {words.signed(totals[1])} in B."
    )
    note = "Rungs of the same name. The change is B less A."
    sizes = _sizes("ladders", [study["sections"]["ladder"] for study in (one, two)])
    return Section("ladder", "Ladder", note, (
        aside(said, sizes), Group([panel] if panel else [], (A, B)), _table("Rungs", pairs, RUNG),
    ))  # fmt: skip


def retrieval(one: Json, two: Json) -> Section:
    """The difference as a signed map, where both asked at the same lengths and depths."""
    parts = [study["sections"]["retrieval"] for study in (one, two)]
    placed = [
        {run["name"] or run["label"]: (at, run) for at, run in enumerate(part["runs"]) if run["cells"]}
        for part in parts
    ]
    common = [name for name in placed[0] if name in placed[1]]
    if not common:
        return Section("retrieval", "Retrieval", "", ())
    same = [axes(part, [run for _, run in side.values()]) for part, side in zip(parts, placed, strict=True)]
    if same[0] != same[1]:
        said = "<p>The two studies asked at other lengths or depths, so there is nothing to subtract.</p>"
        return Section("retrieval", "Retrieval", "", (said,))
    start = begin([placed[0][name][1] for name in common])
    panels = [p for m in MEASURES if (p := _map(common, placed, *same[0], m, start))]
    note = "B less A, for runs of the same name. Blue: B is lower. Orange: B is higher."
    sizes = aside(_sizes("budgets", parts))
    return Section("retrieval", "Retrieval", note, (sizes, Group(panels, pick="run", start=start)))


def either(*labels: str) -> str:
    """What A calls it and what B does, once where they agree."""
    return ARROW.join(dict.fromkeys(labels))


def _sizes(what: str, parts: list[Json]) -> str:
    """The budget and the tokens of A and of B where they are not the same."""
    said = []
    for part in parts:
        facts = [f"k = {words.whole(part['k'])}"] if part["k"] is not None else []
        facts += [f"over {words.many(part['tokens'], 'token')}"] if part.get("tokens") is not None else []
        said.append(" ".join(facts) or "not said")
    return "" if said[0] == said[1] else f"The {what} differ: A {said[0]}, B {said[1]}."


def findings(one: Json, two: Json) -> Section:
    """What fired in one study only; what fired in both is one click away."""
    sides = [
        {each["id"] or each["title"]: each for each in study["findings"] if each["id"] or each["title"]}
        for study in (one, two)
    ]
    if not any(sides):
        return Section("findings", "Findings", "", ())
    state = {
        key: [bool(side[key]["fired"]) if key in side else None for side in sides]
        for key in dict.fromkeys((*sides[0], *sides[1]))
    }
    changed = [key for key, (x, y) in state.items() if bool(x) != bool(y)]
    lasting = [key for key, (x, y) in state.items() if x and y]
    rows = "".join(_card(key, sides, state[key]) for key in changed)
    both = "".join(f"<li>{esc(sides[0][key]['title'] or key)}</li>" for key in lasting)
    return Section("findings", "Findings", "Those that fired in one study only.", (
        f'<div class="cards">{rows}</div>' if rows else "<p>The same findings fired in both.</p>",
        folded(f"Fired in both: {len(lasting)}", f"<ul>{both}</ul>" if both else ""),
    ))  # fmt: skip


def _card(key: str, sides: list[dict[str, Json]], fired: list[bool | None]) -> str:
    only = "A" if fired[0] else "B"
    rows = "".join(
        f"<dt>{side}</dt><dd>{esc('not looked for' if each is None else each['evidence'] or words.NONE)}</dd>"
        for side, each in zip("AB", (side.get(key) for side in sides), strict=True)
    )
    name = next(side[key]["title"] or key for side in sides if key in side)
    return (
        f'<article class="finding" data-finding="{esc(key)}" data-only="{only.lower()}"><h3>{esc(name)}</h3>'
        f'<p class="measured">only in {only}</p><dl>{rows}</dl></article>'
    )


def _paired(*sides: Sequence[tuple[str, str, Json, str]]) -> list[Pair]:
    first, second = ({name: (label, item, path) for name, label, item, path in side} for side in sides)
    pairs: list[Pair] = []
    for name in dict.fromkeys((*first, *second)):
        x, y = first.get(name), second.get(name)
        # One name may stand for two ways of scoring: the words of A must not cover B's numbers.
        label = either(*(side[0] for side in (x, y) if side))
        pairs.append((label, x[1:] if x else None, y[1:] if y else None))
    return pairs


def _table(caption: str, pairs: list[Pair], numbers: Sequence[Number]) -> str:
    groups = head("run") + "".join(head(number.title, "colgroup", 3) for number in numbers)
    under = "<td></td>" + "".join(head(t) for _ in numbers for t in ("A", "B", "change"))
    rows = []
    for label, x, y in pairs:
        only = "" if x and y else f' <span class="only">only in {"A" if x else "B"}</span>'
        row = raw_head(esc(label) + only, "row")
        for number in numbers:
            values: list[Any] = [side[0][number.key] if side else None for side in (x, y)]
            for side, value in zip((x, y), values, strict=True):
                there = cell(number.show(value), "", f"{side[1]}.{number.key}", value) if side else ""
                row += there or derived(words.NONE)
            row += derived(words.NONE if None in values else number.change(values[1] - values[0]))
        rows.append(row)
    return table(caption, [groups, under], rows)


def _bars(id_: str, name: str, pairs: list[Pair], key: str, unit: str, axis: Json) -> Panel | None:
    known = [
        (str(at), label, [side[0][key] if side else None for side in (x, y)]) for at, (label, x, y) in enumerate(pairs)
    ]
    known = [row for row in known if any(value is not None for value in row[2])]
    if not known:
        return None
    names = [at for at, _, _ in known]
    traces = [bars(look, names, [v[side] for _, _, v in known], unit) for side, look in enumerate((A, B))]
    # plotly stacks groups from below; the axis runs downwards here, so B comes first to stand under A.
    labels = [label for _, label, _ in known]
    # Two names take the lines of two, and none may cut off the other.
    lines = max(len(label.split(ARROW)) for label in labels)
    frame = layout(unit, "", 90 + (30 + 14 * lines) * len(known), barmode="group", bargap=0.3,
                   xaxis={"zeroline": True, "nticks": 6, **axis},
                   yaxis=named(names, labels, ARROW))  # fmt: skip
    caption = "One bar alone: the other study has no such run or no such number."
    return Panel(id_, name, caption, {"data": traces[::-1], "layout": frame}, wide=True,
                 table=_table(name, [pairs[int(at)] for at in names],
                              [number for number in (*LOST, *RUNG) if number.key == key]))  # fmt: skip


def _map(
    common: list[str], placed: list[dict[str, tuple[int, Json]]], lengths: list[Any], depths: list[Any],
    measure: tuple[Any, ...], start: int,
) -> Panel | None:  # fmt: skip
    key, heading, _, _, _, show = measure
    across, down = titles(lengths, depths)
    choices = []
    for name in common:
        (at, run), (bt, other) = placed[0][name], placed[1][name]
        cells = grid(run, lengths, depths, key), grid(other, lengths, depths, key)
        values = [
            [None if x is None or y is None else y - x for (_, x), (_, y) in zip(*rows, strict=True)]
            for rows in zip(*cells, strict=True)
        ]
        rows = []
        for depth, xs, ys in zip(down, *cells, strict=True):
            for length, (i, x), (j, y) in zip(across, xs, ys, strict=True):
                one = cell(show(x), "", f"a.sections.retrieval.runs.{at}.cells.{i}.{key}", x) if i >= 0 else ""
                two = cell(show(y), "", f"b.sections.retrieval.runs.{bt}.cells.{j}.{key}", y) if j >= 0 else ""
                change = words.NONE if x is None or y is None else words.signed(y - x, 3)
                rows.append(head(f"depth {depth}, length {length}", "row") + (one or derived(words.NONE))
                            + (two or derived(words.NONE)) + derived(change))  # fmt: skip
        heads = head("cell") + head("A") + head("B") + head("change")
        figure = heat(
            "length, tokens", "depth", across, down, values, signed=True, height=300, labels=True, shown="+.3f"
        )
        label = either(run["label"] or name, other["label"] or name)
        choices.append(Choice(label, figure, table(f"{heading}, {label}", [heads], rows)))
    if not any(v is not None for c in choices for row in c.figure["data"][0]["z"] for v in row):
        return None
    # One scale for all runs, as on the pages of the studies themselves.
    top = max(choice.figure["data"][0]["zmax"] for choice in choices)
    for choice in choices:
        choice.figure["data"][0] |= {"zmin": -top, "zmax": top}
    return Panel(f"plot-compare-{key}", heading, "B less A.", choices[start].figure, choices=tuple(choices))
