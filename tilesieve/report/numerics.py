"""Numerics: the small print that can cost more than the budget."""

from tilesieve.report import words
from tilesieve.report.columns import digits
from tilesieve.report.frame import Section
from tilesieve.report.markup import esc, number
from tilesieve.report.tables import Entry, listing
from tilesieve.report.tidy import Json

PATH = "sections.numerics"


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
    said = [
        f"{before}{number(words.short_number(part[key]), f'{PATH}.global_max.{key}', part[key])}{after}"
        for key, before, after in (
            ("worst_share", " The number nearest to its own bound is at ", " of it."),
            ("largest_gap", " The best selected score lies at most ", " nats below the best of all here;"),
            ("breaks_at", " with a gap of ", " nats the output is further off than rounding allows,"),
            ("nothing_at", " from ", " nats on it is 0/0."),
        ) if part[key] is not None
    ]  # fmt: skip
    return text + "." + "".join(said) + "</p>"


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
    table = listing("The mass that was not selected", f"{PATH}.unselected", rows, entries)
    return table and (
        '<h3>The mass that was not selected</h3><p class="note">Perplexity when the weight of the unselected positions '
        "is estimated from their scores and stays in the softmax's sum, and when it is ignored: a softmax over the "
        f"selected ones alone.</p>{table}"
    )
