"""A study as it comes, possibly unfinished -> a study in which every key is there and every number is finite."""

import math
from typing import Any

Json = dict[str, Any]

RUN_KEYS = (
    "k", "perplexity", "nll", "delta", "kl_mean", "kl_worst", "mass_mean", "mass_worst", "overlap",
    "bytes_per_token", "bytes_dense", "seconds",
)  # fmt: skip
LAYER_KEYS = ("layer", "mass_mean", "mass_worst", "overlap")
STAGE_KEYS = ("phase", "stage", "op", "calls", "seconds", "flops", "bytes_min")
CONTINUATION_KEYS = ("text", "tokens", "diverges_at", "tokens_per_second")
META_KEYS = (
    "model", "text", "tokens", "scored", "layers", "heads", "kv_heads", "head_dim", "dtype", "versions", "machine",
    "date", "command",
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
    runs = [_run(run, at) for at, run in enumerate(_dicts(study.get("runs")))]
    return {
        "schema": study.get("schema"),
        "meta": _pick(study.get("meta"), META_KEYS),
        "runs": runs,
        "timeline": [look for look in map(_look, _dicts(study.get("timeline"))) if look["queries"]],
    }


def dense_of(runs: list[Json]) -> Json | None:
    """The run everything is compared with, if it has been made."""
    return next((run for run in runs if run["family"] == "dense"), None)


def _dicts(items: Any) -> list[Json]:
    return [item for item in items or [] if isinstance(item, dict)]


def _pick(item: Any, keys: tuple[str, ...]) -> Json:
    item = item if isinstance(item, dict) else {}
    return {key: item.get(key) for key in keys}


def _run(run: Json, at: int) -> Json:
    name = str(run.get("name") or f"run {at}")
    said = run.get("continuation")
    return {
        "name": name,
        "label": str(run.get("label") or name),
        "family": str(run.get("family") or "other"),
        **_pick(run, RUN_KEYS),
        "layers": [_pick(layer, LAYER_KEYS) for layer in _dicts(run.get("layers"))],
        "stages": [_pick(stage, STAGE_KEYS) for stage in _dicts(run.get("stages"))],
        "continuation": _pick(said, CONTINUATION_KEYS) if isinstance(said, dict) else None,
    }


def _look(look: Json) -> Json:
    pairs = zip(look.get("queries") or [], look.get("positions") or [], strict=False)
    # -1 is the library's word for "no pick here"; it is not a place in the text.
    kept = [(query, [p for p in picks or [] if p is not None and p >= 0]) for query, picks in pairs]
    kept = [(query, picks) for query, picks in kept if query is not None]
    return {
        "run": str(look.get("run")),
        "layer": look.get("layer"),
        "queries": [query for query, _ in kept],
        "positions": [picks for _, picks in kept],
    }
