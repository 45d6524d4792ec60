"""The page of one study: sections in the order in which one hunts a loss."""

from types import MappingProxyType

from tilesieve.report import (
    budget,
    findings,
    gather,
    ladder,
    latent,
    mass,
    numerics,
    overlap,
    retrieval,
    reuse,
    scrub,
    sensitivity,
    stages,
    tables,
    words,
)
from tilesieve.report.continuations import continuations
from tilesieve.report.document import document, footer
from tilesieve.report.frame import Section
from tilesieve.report.tidy import Json, finite, tidy
from tilesieve.report.verdict import verdict


def page(study: Json) -> str:
    """The whole HTML document for one study."""
    tidied = tidy(study)
    meta, runs = tidied["meta"], tidied["runs"]
    said = continuations(runs)
    parts = [
        Section("summary", "All runs", "A Δ above 5 % is set in red.", (tables.summary(runs),)),
        budget.section(tidied),
        ladder.section(tidied),
        retrieval.section(tidied),
        sensitivity.section(tidied),
        mass.section(tidied),
        scrub.section(tidied),
        overlap.section(tidied),
        reuse.section(tidied),
        gather.section(tidied),
        numerics.section(tidied),
        latent.section(tidied),
        stages.section(tidied),
        Section(
            "continuations", "What it says next",
            "Greedy continuation of the same text. Marked: the first word that is not dense's.",
            (f'<div class="cards">{said}</div>' if said else "",),
        ),
    ]  # fmt: skip
    parts.insert(0, findings.section(tidied, {part.id for part in parts if part.filled()}))
    title = title_of(meta)
    data = MappingProxyType({"study-data": finite(study), "study-looks": scrub.index(tidied)})
    return document(title, subtitle(meta), verdict(tidied), parts, data, footer(meta, bool(runs)))


def title_of(meta: Json) -> str:
    """What was studied, in one line."""
    if meta["trace"] is not None:
        model = f", {words.short(meta['model'], 60)}" if meta["model"] else ""
        return f"tilesieve study of a trace: {words.short(meta['trace'], 80)}{model}"
    model = words.short(meta["model"] or "a model", 80)
    tokens = f" over {words.whole(meta['tokens'])} tokens" if isinstance(meta["tokens"], int | float) else ""
    return f"tilesieve study: {model}{tokens}"


def subtitle(meta: Json) -> str:
    """The text, the scored tokens, the date."""
    said = [f"Text: {meta['text']}."] if meta["text"] is not None else []
    if isinstance(meta["scored"], list) and len(meta["scored"]) == 2:
        said.append("Scored: tokens {} to {}.".format(*map(words.whole, meta["scored"])))
    said += [f"{meta['date']}."] if meta["date"] is not None else []
    return " ".join(said)
