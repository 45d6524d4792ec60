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
            value = json.loads(str(found["data-value"]))
            # A number may stand in the summary and below its figure; it must be the same one.
            assert self.numbers.setdefault(key, value) == value, f"{key} is shown twice, differently"

    def handle_endtag(self, tag: str) -> None:
        self.hidden = "" if tag == self.hidden else self.hidden

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.shown.append(data)


# Numbers that head a row or a column, stand in a sentence, or are drawn by the script for the look it shows.
UNLISTED = re.compile(
    r"runs\.\d+\.(at|layers\.\d+\.layer|continuation\.tokens\.\d+)"
    r"|sections\.\w+\.(tokens|scored\.\d+|k|context|rows|layer_count|width|needle_tokens|samples)"
    r"|sections\.retrieval\.(lengths|depths|ks)\.\d+|sections\.retrieval\.runs\.\d+\.cells\.\d+\.(length|depth)"
    r"|sections\.limits\.chip\..*|sections\.retrieval\.constructed\.(block|rank)|sections\.latent\.by_layer\.(ratio|tokens)"
    r"|sections\.sensitivity\.exempt\.\d+\.layers\.\d+|overlaps\.(k|rows|layer_ids\.\d+)|sections\.gather\.layer_ids\.\d+"
    r"|timeline\.\d+\.(queries|count)\.\d+|meta\..*|schema"
)


def numbers_of_study(study: dict[str, Any]) -> Numbers:
    """(run, path) -> value for all that is a number, or null where one was expected, and that has a table."""
    found: Numbers = {}
    for path, value in leaves(study):
        truth = path.startswith("sections.retrieval.constructed") if isinstance(value, bool) else True
        if isinstance(value, int | float | None) and truth and not UNLISTED.fullmatch(path):
            run = re.match(r"runs\.(\d+)\.", path)
            name, rest = (study["runs"][int(run[1])]["name"], path[run.end() :]) if run else ("", path)
            found[name, rest] = value
    return found


def leaves(value: Any, at: str = "") -> list[tuple[str, Any]]:
    """Everything in JSON that is no list and no object, by dotted path."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [(at, value)]
    return [leaf for key, item in items for leaf in leaves(item, f"{at}.{key}" if at else str(key))]


def at_path(study: Any, run: str, path: str) -> Any:
    """What study.json says where a cell claims to be from; None where there is nothing."""
    at = next((r for r in study["runs"] if isinstance(r, dict) and r.get("name") == run), None) if run else study
    for key in path.split("."):
        if isinstance(at, list):
            at = at[int(key)] if key.isdigit() and int(key) < len(at) else None
        else:
            at = at.get(key) if isinstance(at, dict) else None
    return at


def untrue(study: Any, html: str) -> list[str]:
    """Cells that do not say what the study says."""
    return [
        f"{run} {path}: {value} is not {wanted}"
        for (run, path), value in Reader(html).numbers.items()
        if value != (wanted := at_path(study, run, path))
    ]


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
