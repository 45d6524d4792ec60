"""The same study as still pictures, 1600 pixels wide and meant to be read at half of that."""

import io
from collections.abc import Iterator
from typing import Any

import matplotlib

from tilesieve.report import png_runs, png_sections
from tilesieve.report.png_style import DPI, STYLE
from tilesieve.report.tidy import Json, tidy

PICTURES = (
    ("perplexity-vs-budget.png", png_runs.budget),
    ("perplexity-vs-bytes.png", png_runs.by_bytes),
    ("ladder.png", png_sections.ladder),
    ("retrieval.png", png_sections.retrieval),
    ("sensitivity.png", png_sections.sensitivity),
    ("mass-by-layer.png", png_runs.mass),
    ("timeline.png", png_sections.timeline),
    ("overlap.png", png_sections.overlap),
    ("reuse.png", png_sections.reuse),
    ("latent.png", png_sections.latent),
)


def pictures(study: Json) -> Iterator[tuple[str, bytes]]:
    """File name and PNG bytes of each picture that has something to show."""
    study = tidy(study)
    # rc_context and a bare Figure: no pyplot, so no window, no backend choice and no state left behind.
    style: Any = dict(STYLE)  # matplotlib's stubs list every key it knows, and want no other mapping
    for name, draw in PICTURES:
        sink = io.BytesIO()
        with matplotlib.rc_context(style):
            figure = draw(study)
            if figure is not None:
                figure.savefig(sink, format="png", dpi=DPI, metadata={"Software": None})
        # Outside the block: a generator pauses here, and the caller must not meet our settings meanwhile.
        if figure is not None:
            yield name, sink.getvalue()
