"""A study of a trace alone, recorded anywhere: where it looked, how alike its sets are, what a hot buffer holds."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilesieve.study.describe import SCHEMA, versions
from tilesieve.study.diagnose import diagnose
from tilesieve.study.gather import SIZES, layer_ids, runs_by_layer
from tilesieve.study.hot import hot
from tilesieve.study.looks import looks
from tilesieve.study.overlaps import overlaps
from tilesieve.study.store import plain, writable, write_study
from tilesieve.study.trace import Trace, read_trace


def run_trace(path: Path, out: Path) -> dict[str, Any]:
    """The study of the trace file `path`, as written to out/study.json: no runs, no text, no model's numbers.

    A trace without consecutive queries has no overlaps by lag and no hot buffer. Raises ValueError for a file that
    is no trace (`read_trace`) and a folder that cannot be written.
    """
    writable(out)
    trace = read_trace(path)
    study: dict[str, Any] = {
        "schema": SCHEMA, "meta": meta(trace, path), "runs": [],
        "timeline": [{"run": path.stem, **look} for look in looks(trace)],
        "overlaps": {"run": path.stem, **overlaps(trace)},
        "sections": {"gather": {
            "hot": hot(trace, SIZES), "runs_by_layer": runs_by_layer(trace), "layer_ids": layer_ids(trace),
        }},
    }  # fmt: skip
    study["findings"] = diagnose(study)
    study = plain(study)
    write_study(out, study)
    return study


def meta(trace: Trace, path: Path) -> dict[str, Any]:
    """steps: queries recorded; k: the largest set; model: what the file's header says."""
    model = trace.about.get("model")
    return {
        "trace": path.name, "model": model if isinstance(model, str) else None,
        "layers": len({layer for layer, _ in trace.picks}),
        "steps": len({query for picks in trace.picks.values() for query in picks}), "length": trace.length,
        "k": trace.k,
        "versions": versions(), "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "tilesieve study --trace",
    }  # fmt: skip
