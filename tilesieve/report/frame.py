"""Sections, figures with their numbers below, legends and selectors, as HTML."""

from dataclasses import dataclass
from types import MappingProxyType

from tilesieve.report import words
from tilesieve.report.figure import Panel
from tilesieve.report.markup import esc
from tilesieve.report.palette import Look
from tilesieve.report.tidy import Json

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


@dataclass(frozen=True)
class Group:
    """Figures side by side, with one legend; with `pick`, one selector of that name for all their choices.

    `start` is the choice shown at first: the panels' own figures are those of that choice.
    """

    panels: list[Panel]
    looks: tuple[Look, ...] = ()
    pick: str = ""
    start: int = 0


@dataclass(frozen=True)
class Section:
    """One question. `note` is a plain sentence; parts are ready markup or groups of figures, empty ones allowed."""

    id: str
    title: str
    note: str
    parts: tuple[str | Group, ...]

    def filled(self) -> bool:
        """Whether there is anything to show: a partial study gets a shorter page, not empty frames."""
        return any(part.panels if isinstance(part, Group) else part for part in self.parts)

    def panels(self) -> list[Panel]:
        return [panel for part in self.parts if isinstance(part, Group) for panel in part.panels]


def section(part: Section) -> str:
    """The HTML of a section, empty when it has nothing to show."""
    if not part.filled():
        return ""
    inside = "\n".join(_group(each) if isinstance(each, Group) else each for each in part.parts)
    lead = f'<p class="note">{esc(part.note)}</p>' if part.note else ""
    heading = f'<h2 id="h-{part.id}">{esc(part.title)}</h2>{lead}'
    return f'<section id="{part.id}" aria-labelledby="h-{part.id}">{heading}\n{inside}\n</section>'


def contents(parts: list[Section]) -> str:
    """Links to the sections: a study has more of them than a screen."""
    links = "".join(f'<a href="#{part.id}">{esc(part.title)}</a>' for part in parts if part.filled())
    return f'<nav aria-label="Sections">{links}</nav>' if links else ""


def folded(title: str, inside: str, attributes: str = "") -> str:
    """One click away; nothing where there is nothing."""
    return f"<details{attributes}><summary>{esc(title)}</summary>{inside}</details>" if inside else ""


def scope(part: Json) -> str:
    """Over which tokens and at which budget a section was measured."""
    facts = [f"over {words.many(part['tokens'], 'token')}"] if part.get("tokens") is not None else []
    if len(part.get("scored") or []) == 2:
        facts.append("scored {} to {}".format(*map(words.whole, part["scored"])))
    facts += [f"k = {words.whole(part['k'])}"] if part.get("k") is not None else []
    return f"Measured {', '.join(facts)}." if facts else ""


def aside(*sentences: str) -> str:
    """What the reader need not know to follow: how and on what something was measured."""
    return f'<p class="note">{esc(" ".join(s for s in sentences if s))}</p>' if any(sentences) else ""


def _group(group: Group) -> str:
    if not group.panels:
        return ""
    narrow = sum(not panel.wide for panel in group.panels)
    # Two or four figures fill their rows in pairs; one alone would leave half of its row empty.
    columns = {1: " one", 2: " two", 4: " two"}.get(narrow, "")
    met = {trace.get("meta") for panel in group.panels for trace in panel.figure["data"]}
    keys = "".join(_key(look) for look in group.looks if look.key in met)
    legend = f'<div class="legend" role="group" aria-label="Series shown">{keys}</div>' if keys else ""
    shown = "\n".join(_figure(panel) for panel in group.panels)
    return f'<div class="group">{_picker(group)}{legend}<div class="panels{columns}">{shown}</div></div>'


def _picker(group: Group) -> str:
    """A selector with steps beside it, so that one may leaf through the choices without opening a list."""
    chosen = [panel for panel in group.panels if len(panel.choices) > 1]
    if not chosen:
        return ""
    plots = " ".join(panel.id for panel in chosen)
    options = "".join(
        f"<option{' selected' if at == group.start else ''}>{esc(choice.label)}</option>"
        for at, choice in enumerate(chosen[0].choices)
    )
    word = esc(group.pick or "show")
    return (
        f'<div class="controls row"><button type="button" class="step" data-step="-1" aria-label="previous {word}">‹'
        f'</button><label class="pick"><span>{word}</span><select data-plots="{plots}">{options}</select></label>'
        f'<button type="button" class="step" data-step="1" aria-label="next {word}">›</button></div>'
    )


def _figure(panel: Panel) -> str:
    if panel.choices:
        numbers = "".join(
            folded(f"Numbers: {choice.label}", choice.table, f' data-choice="{panel.id}/{at}"')
            for at, choice in enumerate(panel.choices)
        )
    else:
        numbers = folded("Numbers", panel.table)
    return (
        f"<figure{' class=wide' if panel.wide else ''}><h3>{esc(panel.title)}</h3>"
        # The height is there before the script runs, so that nothing jumps.
        f'<div class="plot" id="{panel.id}" role="img" aria-label="{esc(panel.title)}"'
        f' style="min-height:{panel.figure["layout"]["height"]}px">'
        f"<noscript>The plot needs JavaScript; the tables do not.</noscript></div>"
        f"<figcaption>{esc(panel.caption)}</figcaption>{numbers}</figure>"
    )


def _key(look: Look) -> str:
    """A legend entry that switches its series in every panel of the group."""
    dashes = f' stroke-dasharray="{_DASHARRAY[look.dash]}"' if look.dash in _DASHARRAY else ""
    line = f'<line x1="0" y1="7" x2="26" y2="7" stroke="{look.color}" stroke-width="2.5"{dashes}/>'
    mark = f'<path d="{_MARK.get(look.symbol, _MARK["circle"])}" fill="{look.color}"/>'
    icon = f'<svg width="26" height="14" aria-hidden="true">{"" if look.symbol == "bar" else line}{mark}</svg>'
    return f'<button type="button" aria-pressed="true" data-key="{esc(look.key)}">{icon}{esc(look.label)}</button>'


def figures(parts: list[Section]) -> tuple[Json, Json]:
    """What the script draws at first, and what the selectors may put in its place."""
    panels = [panel for part in parts for panel in part.panels()]
    drawn = {panel.id: panel.figure for panel in panels}
    return drawn, {p.id: [choice.figure for choice in p.choices] for p in panels if p.choices}
