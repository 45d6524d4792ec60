"""A study as it comes, possibly unfinished -> a study in which every key is there and every number is finite."""

import math
import re
from types import MappingProxyType
from typing import Any

from tilesieve.report.shapes import FINDINGS, NUMBER, OVERLAPS, SECTIONS, fill

Json = dict[str, Any]

RUN_KEYS = (
    "k", "perplexity", "nll", "delta", "kl_mean", "kl_worst", "mass_mean", "mass_worst", "overlap",
    "top1", "rate", "worst_at", "bytes_per_token", "bytes_dense", "seconds",
)  # fmt: skip
LAYER_KEYS = ("layer", "mass_mean", "mass_worst", "overlap", "top1")
STAGE_KEYS = ("phase", "stage", "op", "calls", "seconds", "flops", "bytes_min")
CONTINUATION_KEYS = ("text", "tokens", "diverges_at", "tokens_per_second")
META_KEYS = (
    "model", "text", "tokens", "scored", "layers", "heads", "kv_heads", "head_dim", "dtype", "versions", "machine",
    "date", "command", "trace", "k", "steps", "rows_looked",
)  # fmt: skip


def finite(value: Any) -> Any:
    """The same JSON value with NaN and infinities as null: JSON has no words for them, and browsers refuse ours."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def tidy(study: Json) -> Json:
    """Fill what is missing with None or an empty list; the rest of the room never asks whether a key exists."""
    study = finite(study)
    runs = [_run(run, at) for at, run in enumerate(study.get("runs") or []) if isinstance(run, dict)]
    return {
        "schema": study.get("schema"),
        "meta": _pick(study.get("meta"), META_KEYS, rest=True),
        "runs": runs,
        "timeline": [
            look
            for at, item in enumerate(study.get("timeline") or [])
            if isinstance(item, dict) and (look := _look(item, at)) is not None
        ],
        "overlaps": fill(study.get("overlaps"), OVERLAPS),
        "sections": fill(study.get("sections"), MappingProxyType(SECTIONS)),
        "findings": fill(study.get("findings"), FINDINGS),
    }


def dense_of(runs: list[Json]) -> Json | None:
    """The run everything is compared with, if it has been made."""
    return next((run for run in runs if run["family"] == "dense"), None)


def _dicts(items: Any) -> list[Json]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _pick(item: Any, keys: tuple[str, ...], rest: bool = False) -> Json:
    item = item if isinstance(item, dict) else {}
    more = {key: value for key, value in item.items() if key not in keys} if rest else {}
    return {key: item.get(key) for key in keys} | more


def _run(run: Json, at: int) -> Json:
    name = str(run.get("name") or f"run {at}")
    said = run.get("continuation")
    return {
        "at": at,
        "name": name,
        "label": str(run.get("label") or name),
        "family": str(run.get("family") or "other"),
        **_pick(run, RUN_KEYS),
        "layers": [
            {**_pick(layer, LAYER_KEYS), "heads": fill(layer.get("heads"), (NUMBER,))}
            for layer in _dicts(run.get("layers"))
        ],
        "stages": [_pick(stage, STAGE_KEYS) for stage in _dicts(run.get("stages"))],
        "continuation": _pick(said, CONTINUATION_KEYS) if isinstance(said, dict) else None,
    }


def _look(look: Json, at: int) -> Json | None:
    """A look that can be drawn, with its place in the study; None where it is cut short or its cells are no hex."""
    queries, rows, wide = look.get("queries"), look.get("cells"), look.get("bin")
    if not isinstance(queries, list) or not isinstance(rows, list) or len(queries) != len(rows) or not queries:
        return None
    pairs = list(zip(queries, rows, strict=True))
    whole = isinstance(wide, int) and wide >= 1 and isinstance(look.get("length"), int) and look["length"] >= 1
    if not whole or not all(isinstance(q, int) and _is_hex(cells) for q, cells in pairs):
        return None
    return {
        "at": at,
        "run": str(look.get("run")),
        **{key: fill(look.get(key), NUMBER) for key in ("layer", "head", "near", "spread", "stay", "drift")},
        "bin": wide,
        "length": look["length"],
        "queries": [query for query, _ in pairs],
        "cells": [cells for _, cells in pairs],
        "count": fill(look.get("count"), (NUMBER,)),
    }


def _is_hex(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-fA-F]*", text) is not None
