"""Findings: what was looked for, what showed, and what to try."""

from collections.abc import Collection

from tilesieve.report import words
from tilesieve.report.frame import Section, folded
from tilesieve.report.markup import cell, esc, head, number, table
from tilesieve.report.tidy import Json


def section(study: Json, there: Collection[str]) -> Section:
    """Fired ones as cards; the others are one click away. `there` are the sections that a card may link to."""
    found = [(at, each) for at, each in enumerate(study["findings"]) if each["title"] or each["id"]]
    fired = [(at, each) for at, each in found if each["fired"]]
    quiet = [(at, each) for at, each in found if not each["fired"]]
    cards = "".join(_card(at, each, there) for at, each in fired)
    calm = "" if fired or not found else "<p>No known trouble showed.</p>"
    unknown = sum(each["value"] is None for _, each in quiet)
    title = f"Looked for, not found: {len(quiet) - unknown}" + (f"; not measured: {unknown}" if unknown else "")
    note = "Known ways in which selection loses, each held against the numbers of this study."
    return Section("findings", "Findings", note, (
        f'<div class="cards">{cards}</div>' if cards else calm, folded(title, _quiet(quiet, there)),
    ))  # fmt: skip


def _title(each: Json) -> str:
    return each["title"] or each["id"] or "finding"


def _card(at: int, each: Json, there: Collection[str]) -> str:
    facts = [
        (name, each[key])
        for name, key in (("trigger", "trigger"), ("evidence", "evidence"), ("try", "try"))
        if each[key]
    ]
    rows = "".join(f"<dt>{name}</dt><dd>{esc(text)}</dd>" for name, text in facts)
    value = number(words.short_number(each["value"]), f"findings.{at}.value", each["value"])
    bar = number(words.short_number(each["threshold"]), f"findings.{at}.threshold", each["threshold"])
    return (
        f'<article class="finding" data-finding="{esc(each["id"])}"><h3>{esc(_title(each))}</h3>'
        f'<p class="measured">{value} <span class="note">against {bar}</span></p><dl>{rows}</dl>'
        f"{_link(each, there)}</article>"
    )


def _link(each: Json, there: Collection[str]) -> str:
    known = each["section"] in there
    return f'<p class="more"><a href="#{esc(each["section"])}">See the numbers</a></p>' if known else ""


def _quiet(quiet: list[tuple[int, Json]], there: Collection[str]) -> str:
    if not quiet:
        return ""
    rows = []
    for at, each in quiet:
        known = each["section"] in there
        name = f'<a href="#{esc(each["section"])}">{esc(_title(each))}</a>' if known else esc(_title(each))
        rows.append(
            f'<th scope="row">{name}</th>'
            + cell("not measured" if each["value"] is None else words.short_number(each["value"]), "",
                   f"findings.{at}.value", each["value"])
            + cell(words.short_number(each["threshold"]), "", f"findings.{at}.threshold", each["threshold"])
            + f'<td class="word prose">{esc(each["trigger"] or words.NONE)}</td>'
            + f'<td class="word prose">{esc(each["evidence"] or words.NONE)}</td>'
        )  # fmt: skip
    heads = head("finding") + head("value") + head("threshold") + head("trigger", css="word")
    return table("Looked for, not found", [heads + head("evidence", css="word")], rows)
