"""The few HTML shapes that all tables share. Every string from the study passes through `esc` here or is JSON."""

import html
import json
import re
from typing import Any


def esc(text: object) -> str:
    """Text that is safe as content and inside a quoted attribute."""
    return html.escape(str(text), quote=True)


def script_json(value: Any) -> str:
    """JSON for a <script> block: no < at all, so neither </script> nor <!-- can appear; pure ASCII."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def cell(shown: str, run: str, field: str, value: Any, css: str = "") -> str:
    """A number of the study: what is shown may be rounded, data-value is exactly what the JSON says."""
    data = f'data-run="{esc(run)}" data-field="{esc(field)}" data-value="{esc(json.dumps(value))}"'
    return f"<td{_css(css)} {data}>{esc(shown)}</td>"


def number(shown: str, field: str, value: Any) -> str:
    """A number of the study inside a sentence or a card, with its path like `cell`."""
    return f'<data data-run="" data-field="{esc(field)}" data-value="{esc(json.dumps(value))}">{esc(shown)}</data>'


def derived(shown: str, css: str = "") -> str:
    """A number this page works out from others; it is in no JSON, so it carries no data-value."""
    return f"<td{_css(css)}>{esc(shown)}</td>"


def head(text: str, scope: str = "col", span: int = 1, css: str = "") -> str:
    """A header cell of an escaped text."""
    return raw_head(esc(text), scope, span, css)


def raw_head(inner: str, scope: str = "col", span: int = 1, css: str = "") -> str:
    """A header cell of ready markup."""
    wide = f' colspan="{span}"' if span > 1 else ""
    return f'<th scope="{scope}"{wide}{_css(css)}>{inner}</th>'


def table(caption: str, heads: list[str], rows: list[str]) -> str:
    """A table in its own scroller: a wide table must never widen the page. Focusable, so that keys can scroll it."""
    top = "".join(f"<tr>{row}</tr>" for row in heads)
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{esc(caption)}"><table>'
        f"<caption>{esc(caption)}</caption><thead>{top}</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def swatch(family: str) -> str:
    """The dot before a run's name. Only letters reach the class name."""
    return f'<span class="dot family-{re.sub("[^a-z]", "", family.lower())}" aria-hidden="true"></span>'


def _css(css: str) -> str:
    return f' class="{css}"' if css else ""
