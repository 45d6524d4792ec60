"""Two studies side by side: what differs in how they were made, and in what they found."""

import json
from collections.abc import Iterator
from typing import Any

from tilesieve.report import words
from tilesieve.report.compare_parts import either, findings, ladder, retrieval, runs
from tilesieve.report.document import columns, document, fact
from tilesieve.report.frame import Section, folded
from tilesieve.report.markup import esc, head, table
from tilesieve.report.page import title_of
from tilesieve.report.tidy import Json, finite, tidy

# These always differ or say nothing about the numbers.
ASIDE = ("date", "command", "sections")


def page(a: Json, b: Json) -> str:
    """The whole HTML document for two studies. Cells carry paths that begin with a. or b."""
    one, two = tidy(a), tidy(b)
    parts = [
        _meta(one["meta"], two["meta"]), findings(one, two), runs(one, two), ladder(one, two), retrieval(one, two),
    ]  # fmt: skip
    subtitle = f"A: {_named(one)}\nB: {_named(two)}"
    data = {"study-data": {"a": finite(a), "b": finite(b)}}
    return document("tilesieve: two studies, A and B", subtitle, _verdict(one, two), parts, data,
                    f"<footer>{columns(_looked(one['meta'], two['meta']))}</footer>")  # fmt: skip


def _looked(a: Json, b: Json) -> str:
    one, two = words.looked(a["rows_looked"]), words.looked(b["rows_looked"])
    return one if one == two else f"{one} (A), {two} (B)"


def _named(study: Json) -> str:
    date = study["meta"]["date"]
    return title_of(study["meta"]).removeprefix("tilesieve study").lstrip(": ") + (f", {date}" if date else "")


def _verdict(one: Json, two: Json) -> list[str]:
    both = [(run, other) for run in one["runs"] for other in two["runs"] if run["name"] == other["name"]]
    judged = [(x, y) for x, y in both if x["delta"] is not None and y["delta"] is not None]
    alone = len(one["runs"]) + len(two["runs"]) - 2 * len(both)
    if not both:
        return ["The two studies have no run in common."]
    common = f"{words.many(len(both), 'run')} {'is' if len(both) == 1 else 'are'} in both studies"
    said = [common + (f", {alone} in one only." if alone else ".")]
    if judged:
        x, y = max(judged, key=lambda pair: abs(pair[1]["delta"] - pair[0]["delta"]))
        change = y["delta"] - x["delta"]
        if change:
            said.append(
                f"Against its own dense, {either(x['label'], y['label'])} changes most from A to B: "
                f"{words.signed_percent(x['delta'])} to {words.signed_percent(y['delta'])}."
            )
        else:
            said.append("No run's loss against its own dense differs.")
    if one["meta"]["tokens"] != two["meta"]["tokens"] or one["meta"]["text"] != two["meta"]["text"]:
        said.append("The texts differ, so compare the losses against dense and not the perplexities.")
    return said


def _meta(a: Json, b: Json) -> Section:
    flat = [dict(_leaves(meta)) for meta in (a, b)]
    keys = list(dict.fromkeys((*flat[0], *flat[1])))
    unequal = [key for key in keys if flat[0].get(key) != flat[1].get(key)]
    differ = [key for key in unequal if key not in ASIDE]
    rest = [key for key in keys if key not in differ]
    note = "Model, text, tokens, versions and machine, where they are not the same." if differ else ""
    same = "" if differ or not keys else "<p>Nothing: model, text, tokens, versions and machine are the same.</p>"
    return Section("meta", "What differs in the making", note, (
        _rows("What differs", differ, flat), same, folded("Same in both, and dates and commands",
                                                          _rows("The rest", rest, flat)),
    ))  # fmt: skip


def _rows(title: str, keys: list[str], flat: list[Json]) -> str:
    if not keys:
        return ""
    rows = [
        head(key.replace("_", " "), "row") + "".join(
            f'<td class="word prose" data-meta="{side}.{esc(key)}" data-value="{esc(json.dumps(meta.get(key)))}">'
            f"{esc(words.NONE if meta.get(key) is None else fact(key, meta[key]))}</td>"
            for side, meta in zip("ab", flat, strict=True)
        ) for key in keys
    ]  # fmt: skip
    return table(title, [head("what") + head("A", css="word") + head("B", css="word")], rows)


def _leaves(meta: Json) -> Iterator[tuple[str, Any]]:
    """versions and machine entry by entry; the rest as it is."""
    for key, value in meta.items():
        if isinstance(value, dict):
            yield from ((f"{key} {name}", inner) for name, inner in value.items())
        elif value is not None:
            yield key, value
