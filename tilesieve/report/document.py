"""The frame of every page: everything it needs inlined once, and a policy that fetches nothing."""

import base64
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from plotly.offline import get_plotlyjs

from tilesieve.report import words
from tilesieve.report.columns import COLUMNS
from tilesieve.report.frame import Section, contents, figures, section
from tilesieve.report.markup import esc, script_json
from tilesieve.report.script import JS
from tilesieve.report.style import CSS
from tilesieve.report.tidy import Json


def document(
    title: str, subtitle: str, verdict: Sequence[str], parts: list[Section], data: Mapping[str, Any], foot: str
) -> str:  # fmt: skip
    """An HTML document that works from a file, offline, with its data inside."""
    drawn, choices = figures(parts)
    scripts = [get_plotlyjs(), JS] if drawn else []
    blocks = {**data, "study-figures": drawn, "study-choices": choices}
    blocks.setdefault("study-looks", [])
    note = f'<p class="note">{esc(subtitle)}</p>' if subtitle else ""
    return "\n".join((
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_policy(scripts)}',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{esc(title)}</title>\n<link rel="icon" href="data:,">\n<style>{CSS}</style>\n</head>\n<body>',
        f"<header><h1>{esc(title)}</h1>{note}",
        f'<div class="verdict" role="note">{"".join(f"<p>{esc(said)}</p>" for said in verdict)}</div></header>',
        "<main>", contents(parts), *(section(part) for part in parts), "</main>", foot,
        *(f'<script type="application/json" id="{key}">{script_json(value)}</script>' for key, value in blocks.items()),
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


def footer(meta: Json, with_columns: bool = True) -> str:
    """What the columns mean, and how the numbers were made."""
    facts = "".join(
        f"<dt>{esc(key.replace('_', ' '))}</dt>"
        f'<dd data-meta="{esc(key)}" data-value="{esc(json.dumps(value))}">{esc(fact(key, value))}</dd>'
        for key, value in meta.items()
        if value is not None
    )
    made = f"<h2>How it was made</h2><dl>{facts}</dl>" if facts else ""
    return f"<footer>{columns(words.looked(meta['rows_looked'])) if with_columns else ''}{made}</footer>"


def columns(looked: str) -> str:
    """The columns of the summary in words. `looked` are the rows that mass, overlap and top-1 were taken over."""
    rows = "".join(f"<dt>{esc(c.title)}</dt><dd>{esc(c.means.replace('{rows}', looked))}</dd>" for c in COLUMNS)
    return (
        f"<h2>What the columns mean</h2><dl>{rows}<dt>MB at least</dt><dd>bytes that an operator cannot "
        "avoid moving, 1e6 to the MB; GB/s and GFLOP/s are these bytes and the flops over the seconds, 1e9 to the G"
        "</dd></dl>"
    )


def fact(key: str, value: Any) -> str:
    """A value of meta as people read it; a command exactly as it was given."""
    if key == "command":
        return shlex.join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {fact(name, item)}" for name, item in value.items())
    if isinstance(value, list):
        return (" to " if key == "scored" else ", ").join(fact("", item) for item in value) or "none"
    if isinstance(value, bool):
        return words.yes(value)
    return words.whole(value) if isinstance(value, int | None) else str(value)
