"""What the pure tests and the browser tests both ask of a page."""

import json
import re
from html.parser import HTMLParser
from typing import Any

Numbers = dict[tuple[str, str], Any]


class Reader(HTMLParser):
    """Collects the tags of a page, the numbers its cells carry, and the text it shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.numbers: Numbers = {}
        self.shown: list[str] = []
        self.hidden = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.hidden = tag if tag in ("script", "style") else ""
        if "data-field" in found:
            key = (str(found["data-run"]), str(found["data-field"]))
            assert key not in self.numbers, f"{key} is shown twice"
            self.numbers[key] = json.loads(str(found["data-value"]))

    def handle_endtag(self, tag: str) -> None:
        self.hidden = "" if tag == self.hidden else self.hidden

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.shown.append(data)


def numbers_of_study(study: dict[str, Any]) -> Numbers:
    """(run, dotted field) -> value for everything in a run that is a number, or null where one was expected."""
    found: Numbers = {}
    for run in study["runs"]:
        for field, value in _leaves(run):
            if isinstance(value, int | float | None):
                found[run["name"], field] = value
    return found


def _leaves(value: Any, at: str = "") -> list[tuple[str, Any]]:
    # A layer's number heads its row; token ids are text with one of them marked, not a table.
    if at == "continuation.tokens" or re.fullmatch(r"layers\.\d+\.layer", at):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [(at, value)]
    return [leaf for key, item in items for leaf in _leaves(item, f"{at}.{key}" if at else str(key))]


def embedded(html: str, id_: str = "study-data") -> Any:
    """A JSON block of the page, as a browser would read it: up to the first </script."""
    found = re.search(rf'<script type="application/json" id="{id_}">(.*?)</script', html, re.DOTALL)
    assert found, f"no block {id_}"

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(found[1], parse_constant=refuse)


def fetched(html: str) -> list[str]:
    """Every URL outside the file that a browser would load on its own."""
    loads = ("src", "srcset", "poster", "data", "background", "action", "xlink:href")
    urls = []
    for tag, attrs in Reader(html).tags:
        for name, value in attrs.items():
            by_link = name == "href" and tag in ("link", "base", "image", "use", "a")
            if (name in loads or by_link) and not str(value).startswith(("data:", "#")):
                urls.append(f"{tag} {name}={value}")
    # The page's styles; plotly.js carries strings of its own that only maps would use.
    for style in re.findall(r"<style>(.*?)</style>", html, re.DOTALL):
        urls += re.findall(r"@import[^;]*|url\((?!['\"]?(?:data:|#))[^)]*\)", style)
    return urls
