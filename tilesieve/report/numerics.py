"""Numerics: the small print that can cost more than the budget."""

from collections.abc import Callable
from typing import Any

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.frame import Section
from tilesieve.report.markup import cell, esc, head, number, table
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

PATH = "sections.numerics"
LIMITS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("worst_share", "largest difference, as a share of what rounding allows that number", words.percent),
    ("largest_gap", "largest gap between the best score and the best selected one, nats", words.short_number),
    ("breaks_at", "gap from which the output is further off than rounding allows, nats", words.short_number),
    ("nothing_at", "gap from which no weight is left, 0 / 0, nats", words.short_number),
)


def section(study: Json) -> Section:
    """One line about the shared maximum, one table about the mass that nobody selected."""
    part = study["sections"]["numerics"]
    note = "Two ways in which a sparse softmax can go wrong although the right positions were selected."
    return Section("numerics", "Numerics", note, (_global_max(part["global_max"]), _unselected(part["unselected"])))


def _global_max(part: Json) -> str:
    found, allowed, rows = (part[key] for key in ("largest_difference", "rounding", "rows"))
    if found is None:
        return ""
    text = (
        "<p>Subtracting the maximum of all scores instead of that of the selected ones changes the output by at most "
        f"{number(words.short_number(found), f'{PATH}.global_max.largest_difference', found)}"
    )
    if rows is not None:
        text += f" over {number(words.whole(rows), f'{PATH}.global_max.rows', rows)} rows"
    if allowed is not None:
        fits = "within it: no cause of loss" if found <= allowed else "more than that: look here first"
        spoken = number(words.short_number(allowed), f"{PATH}.global_max.rounding", allowed)
        text += f"; rounding alone allows {spoken}, so it is {esc(fits)}"
    return f"{text}.</p>{_verdict(part)}{_limits(part)}"


def _verdict(part: Json) -> str:
    """Whether the shared maximum did harm on this text, and how far it is from doing any."""
    share, gap, breaks = (part[key] for key in ("worst_share", "largest_gap", "breaks_at"))
    if gap is None:
        return ""
    within = share <= 1 if share is not None else None
    if within is None and part["rounding"] is not None:
        within = part["largest_difference"] <= part["rounding"]
    harmless = within is not False and (breaks is None or gap < breaks)
    spoken = f"the largest gap was {_said(part, 'largest_gap')} nats"
    ends = f"it {'would break' if harmless else 'breaks'} at {_said(part, 'breaks_at')}" if breaks is not None else ""
    if harmless:
        text = f"Keeping the maximum of all scores is harmless on this text because {spoken}"
    else:
        text = f"Keeping the maximum of all scores is not harmless on this text: {spoken}"
    return f"<p>{text}{'; ' if ends else ''}{ends}.</p>"


def _said(part: Json, key: str) -> str:
    return number(words.short_number(part[key]), f"{PATH}.global_max.{key}", part[key])


def _limits(part: Json) -> str:
    """The numbers behind the sentence; older studies have none."""
    if all(part[key] is None for key, _, _ in LIMITS):
        return ""
    rows = [
        head(title, "row") + cell(show(part[key]), "", f"{PATH}.global_max.{key}", part[key])
        for key, title, show in LIMITS
    ]
    return table("The shared maximum", [head("what") + head("value")], rows)


def _unselected(rows: list[Json]) -> str:
    entries = (
        Entry("label", "run"), Entry("perplexity", "estimated", words.fixed),
        Entry("delta", "Δ dense", words.signed_percent), Entry("kl_mean", "KL mean", digits(4)),
        Entry("kl_worst", "KL worst", digits(3), optional=True),
        Entry("perplexity_ignored", "ignored", words.fixed),
        Entry("delta_ignored", "Δ dense, ignored", words.signed_percent),
        Entry("kl_mean_ignored", "KL mean, ignored", digits(4), optional=True),
        Entry("kl_worst_ignored", "KL worst, ignored", digits(3), optional=True),
    )  # fmt: skip
    shown = listing("The mass that was not selected", f"{PATH}.unselected", rows, entries)
    return shown and (
        '<h3>The mass that was not selected</h3><p class="note">Perplexity when the weight of the unselected positions '
        "is estimated from their scores and stays in the softmax's sum, and when it is ignored: a softmax over the "
        f"selected ones alone.</p>{shown}"
    )
