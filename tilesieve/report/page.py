"""The page: sections in the order in which one hunts a loss, everything it needs inlined once."""

import base64
import hashlib
import json
from types import MappingProxyType
from typing import Any

from plotly.offline import get_plotlyjs

from tilesieve.report import plots, tables, words
from tilesieve.report.columns import COLUMNS
from tilesieve.report.continuations import continuations
from tilesieve.report.markup import esc, script_json
from tilesieve.report.palette import Look, family_looks, run_looks, stage_looks
from tilesieve.report.script import JS
from tilesieve.report.style import CSS
from tilesieve.report.tidy import Json, finite, tidy
from tilesieve.report.verdict import verdict

_DASHARRAY = MappingProxyType({"dash": "5 3", "dot": "2 3", "dashdot": "5 2 2 2", "longdash": "8 3"})
# plotly's markers around (13, 7), so that a series can be told in the legend without its colour.
_MARK = MappingProxyType(
    {
        "circle": "M8.5 7a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0",
        "diamond": "M13 1.5L18.5 7L13 12.500L7.5 7Z",
        "square": "M8.5 2.500h9v9h-9z",
        "star": "M13 0l1.7 5h5.300l-4.3 3.100l1.6 5l-4.3-3.100l-4.3 3.100l1.6-5l-4.3-3.100h5.300z",
        "triangle-up": "M13 1.500l5.5 10h-11z",
        "none": "",
        "bar": "M4 2h18v10h-18z",
    }
)


def page(study: Json) -> str:
    """The whole HTML document for one study."""
    tidied = tidy(study)
    meta, runs = tidied["meta"], tidied["runs"]
    panels = {
        "budget": plots.against_budget(runs),
        "mass": plots.by_layer(runs),
        "timeline": plots.looked_at(tidied["timeline"], runs),
        "stages": plots.by_stage(runs),
    }
    body = [
        _section("summary", "All runs", "A Δ above 5 % is set in red.", tables.summary(runs) if runs else ""),
        _section("budget", "What a budget costs", "", _panels(panels["budget"], family_looks(runs))),
        _section(
            "mass", "Attention mass kept by layer", "A layer that dips is where the selection misses what dense reads.",
            _panels(panels["mass"], list(run_looks(runs).values())),
            _folded("Every layer in numbers", tables.by_layer(runs)),
        ),
        _section("timeline", "Where it looked", "", _panels(panels["timeline"], [])),
        _section(
            "stages", "Time per stage", "", _panels(panels["stages"], stage_looks(runs)),
            _folded("Every stage in numbers", tables.by_stage(runs)),
        ),
        _section(
            "continuations", "What it says next",
            "Greedy continuation of the same text. Marked: the first word that is not dense's.",
            f'<div class="cards">{said}</div>' if (said := continuations(runs)) else "",
        ),
    ]  # fmt: skip
    figures = {panel.id: panel.figure for group in panels.values() for panel in group}
    scripts = [get_plotlyjs(), JS] if figures else []
    title = _title(meta)
    return "\n".join((
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_policy(scripts)}',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{esc(title)}</title>\n<link rel="icon" href="data:,">\n<style>{CSS}</style>\n</head>\n<body>',
        f"<header><h1>{esc(title)}</h1>{_subtitle(meta)}",
        f'<div class="verdict" role="note">{"".join(f"<p>{esc(said)}</p>" for said in verdict(tidied))}</div></header>',
        "<main>", *body, "</main>", _footer(meta),
        f'<script type="application/json" id="study-data">{script_json(finite(study))}</script>',
        f'<script type="application/json" id="study-figures">{script_json(figures)}</script>',
        *(f"<script>{script}</script>" for script in scripts), "</body>\n</html>\n",
    ))  # fmt: skip


def _policy(scripts: list[str]) -> str:
    """A policy that fetches nothing and runs only these scripts: offline by rule, not by habit."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    rules = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{rules}">'


def _title(meta: Json) -> str:
    model = words.short(meta["model"] or "a model", 80)
    tokens = f" over {words.whole(meta['tokens'])} tokens" if meta["tokens"] is not None else ""
    return f"tilesieve study: {model}{tokens}"


def _subtitle(meta: Json) -> str:
    said = [f"Text: {meta['text']}."] if meta["text"] is not None else []
    if isinstance(meta["scored"], list) and len(meta["scored"]) == 2:
        said.append("Scored: tokens {} to {}.".format(*map(words.whole, meta["scored"])))
    said += [f"{meta['date']}."] if meta["date"] is not None else []
    return f'<p class="note">{esc(" ".join(said))}</p>' if said else ""


def _section(id_: str, title: str, note: str, *parts: str) -> str:
    """Empty when it has nothing to show: a partial study gets a shorter page, not empty frames."""
    inside = "\n".join(part for part in parts if part)
    lead = f'<p class="note">{esc(note)}</p>' if note else ""
    if not inside:
        return ""
    heading = f'<h2 id="h-{id_}">{esc(title)}</h2>{lead}'
    return f'<section id="{id_}" aria-labelledby="h-{id_}">{heading}\n{inside}\n</section>'


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{esc(title)}</summary>{inside}</details>" if inside else ""


def _panels(panels: list[plots.Panel], looks: list[Look]) -> str:
    if not panels:
        return ""
    met = {trace.get("meta") for panel in panels for trace in panel.figure["data"]}
    keys = "".join(_key(look) for look in looks if look.key in met)
    legend = f'<div class="legend" role="group" aria-label="Series shown">{keys}</div>' if keys else ""
    figures = "\n".join(
        f"<figure><h3>{esc(panel.title)}</h3>"
        # The height is there before the script runs, so that nothing jumps.
        f'<div class="plot" id="{panel.id}" style="min-height:{panel.figure["layout"]["height"]}px">'
        f"<noscript>The plot needs JavaScript; the tables do not.</noscript></div>"
        f"<figcaption>{esc(panel.caption)}</figcaption></figure>"
        for panel in panels
    )
    return f'{legend}<div class="panels">{figures}</div>'


def _key(look: Look) -> str:
    """A legend entry that switches its series in every panel of the section."""
    dashes = f' stroke-dasharray="{_DASHARRAY[look.dash]}"' if look.dash in _DASHARRAY else ""
    line = f'<line x1="0" y1="7" x2="26" y2="7" stroke="{look.color}" stroke-width="2.5"{dashes}/>'
    mark = f'<path d="{_MARK.get(look.symbol, _MARK["circle"])}" fill="{look.color}"/>'
    icon = f'<svg width="26" height="14" aria-hidden="true">{"" if look.symbol == "bar" else line}{mark}</svg>'
    return f'<button type="button" aria-pressed="true" data-key="{esc(look.key)}">{icon}{esc(look.label)}</button>'


def _footer(meta: Json) -> str:
    columns = "".join(f"<dt>{esc(c.title)}</dt><dd>{esc(c.means)}</dd>" for c in COLUMNS)
    facts = "".join(
        f"<dt>{esc(key.replace('_', ' '))}</dt>"
        f'<dd data-meta="{esc(key)}" data-value="{esc(json.dumps(value))}">{esc(_fact(value))}</dd>'
        for key, value in meta.items()
        if value is not None
    )
    return (
        f"<footer><h2>What the columns mean</h2><dl>{columns}<dt>MB at least</dt><dd>bytes that an operator cannot "
        "avoid moving, 1e6 to the MB; GB/s and GFLOP/s are these bytes and the flops over the seconds, 1e9 to the G"
        f"</dd></dl><h2>How it was made</h2><dl>{facts}</dl></footer>"
    )


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_fact(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " to ".join(map(_fact, value))
    return words.whole(value) if isinstance(value, int | None) else str(value)
