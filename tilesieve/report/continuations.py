"""What each run says next, beside dense, with the first difference marked."""

from os.path import commonprefix

from tilesieve.report import words
from tilesieve.report.markup import esc, swatch
from tilesieve.report.tidy import Json, dense_of


def continuations(runs: list[Json]) -> str:
    """A card per run that has spoken."""
    dense = dense_of(runs)
    base = dense["continuation"] if dense else None
    return "\n".join(_card(run, base) for run in runs if run["continuation"])


def _card(run: Json, base: Json | None) -> str:
    said = run["continuation"]
    at = said["diverges_at"]
    is_dense = run["family"] == "dense"
    if is_dense:
        note = "the continuation to compare with"
    elif at is None:
        note = "same tokens as dense"
    else:
        note = f"differs from token {words.whole(at)} on"
    own = str(said["text"] or "")
    other = own if is_dense or base is None else str(base["text"] or "")
    return (
        f'<article class="said" data-run="{esc(run["name"])}"><h3>{swatch(run["family"])}{esc(run["label"])}</h3>'
        f'<p class="note">{esc(note)}</p><blockquote>{_marked_text(own, other)}</blockquote>'
        f"<details><summary>{len(said['tokens'] or [])} token ids</summary>"
        f'<p class="ids">{_marked_tokens(said["tokens"] or [], at)}</p></details></article>'
    )


def _marked_text(own: str, other: str) -> str:
    """The text has no token borders, so the mark starts at the first differing character and ends with its word."""
    if own == other:
        return esc(own)
    start = len(commonprefix([own, other]))
    # Two different words may share letters: begin the mark where the word begins.
    while 0 < start < len(own) and not own[start - 1].isspace():
        start -= 1
    end = start
    while end < len(own) and (end == start or not own[end].isspace()):
        end += 1
    mark = esc(own[start:end]) or "∎"
    return f'{esc(own[:start])}<mark>{mark}</mark><span class="after">{esc(own[end:])}</span>'


def _marked_tokens(tokens: list[int], at: int | None) -> str:
    """Token ids with the diverging one marked; a run that stopped short gets the mark at its end."""
    shown = [
        f'<mark data-diverges="{place}">{esc(token)}</mark>' if place == at else esc(token)
        for place, token in enumerate(tokens)
    ]
    if at is not None and at >= len(tokens):
        shown.append(f'<mark data-diverges="{at}">∎</mark>')
    return " ".join(shown)
