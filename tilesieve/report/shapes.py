"""The parts of a study that schema 2 added, as shapes to fill: what is missing becomes None or an empty list."""

from types import MappingProxyType
from typing import Any

NUMBER, TEXT, FLAG = "number", "text", "flag"
NUMBERS, WORDS = (NUMBER,), (TEXT,)
_LAYERS = (
    MappingProxyType({"layer": NUMBER, "mass_mean": NUMBER, "mass_worst": NUMBER, "overlap": NUMBER, "top1": NUMBER,
                      "heads": NUMBERS}),
)  # fmt: skip


def _numbers(keys: str, **more: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType({key: NUMBER for key in keys.split()} | more)


LADDER = _numbers(
    "tokens k total sum_alone interaction", scored=NUMBERS,
    rungs=(_numbers(
        "perplexity nll delta own alone kl_mean kl_worst worst_at mass_mean mass_worst top1 overlap rate "
        "bytes_per_token", name=TEXT, label=TEXT, adds=TEXT, side=FLAG, layers=_LAYERS,
    ),),
)  # fmt: skip
RETRIEVAL = _numbers(
    "k needle_tokens samples", lengths=NUMBERS, depths=NUMBERS, ks=NUMBERS, needle=TEXT, note=TEXT,
    runs=(MappingProxyType({"name": TEXT, "label": TEXT, "cells": (_numbers("length depth logprob right held"),)}),),
    constructed=_numbers("block rank", rows=(_numbers("local_k error", kept=FLAG),)),
)  # fmt: skip
SENSITIVITY = _numbers(
    "k tokens", scored=NUMBERS, policy=TEXT, layers=(_numbers("layer cost overlap", heads=NUMBERS),),
    ranked=(_numbers("layer head cost"),), checked=(_numbers("layer head estimated measured"),),
    exempt=(_numbers("perplexity delta bytes_per_token", layers=NUMBERS, label=TEXT),),
    by_k=(_numbers("k", layers=(_numbers("layer cost"),)),),
)  # fmt: skip
REUSE = _numbers(
    "k tokens", scored=NUMBERS, turn=(_numbers("layer median p10"),),
    runs=(_numbers("n threshold rate perplexity delta kl_mean kl_worst mass_mean", name=TEXT, label=TEXT, rule=TEXT),),
)  # fmt: skip
GATHER = _numbers(
    "k context rows layer_count", runs_by_layer=NUMBERS, layer_ids=NUMBERS, hot=(_numbers("size hit"),),
    layouts=(_numbers("runs bytes seconds", layout=TEXT, order=TEXT, way=TEXT),),
    by_context=(_numbers("context seconds runs"),),
)  # fmt: skip
NUMERICS = MappingProxyType({
    "global_max": _numbers("largest_difference rounding rows worst_share largest_gap breaks_at nothing_at"),
    "unselected": (
        _numbers("perplexity delta kl_mean kl_worst perplexity_ignored delta_ignored kl_mean_ignored kl_worst_ignored",
                 name=TEXT, label=TEXT),
    ),
})  # fmt: skip
LATENT = _numbers(
    "tokens width", scored=NUMBERS, note=TEXT,
    rows=(_numbers("ratio rank perplexity delta", where=TEXT,
                   layers=(_numbers("layer error key_error value_error"),)),),
    by_layer=_numbers("ratio tokens", where=TEXT, rows=(_numbers("layer perplexity delta"),)),
)  # fmt: skip
LIMITS = _numbers("context", model=TEXT, chip=TEXT, lines=(_numbers("k", name=TEXT, what=TEXT),))
SECTIONS = MappingProxyType({
    "ladder": LADDER, "retrieval": RETRIEVAL, "sensitivity": SENSITIVITY, "reuse": REUSE, "gather": GATHER,
    "numerics": NUMERICS, "latent": LATENT, "limits": LIMITS,
})  # fmt: skip
OVERLAPS = _numbers(
    "k rows", run=TEXT, layers=(NUMBERS,), layer_ids=NUMBERS, steps=(_numbers("lag overlap", layers=NUMBERS),)
)
FINDINGS = (
    _numbers("value threshold", id=TEXT, title=TEXT, fired=FLAG, trigger=TEXT, evidence=TEXT, section=TEXT,
             **{"try": TEXT}),
)  # fmt: skip


def fill(value: Any, shape: Any) -> Any:
    """`value` in the given shape. Entries of lists keep their places, so that paths into the JSON stay true."""
    if isinstance(shape, MappingProxyType):
        value = value if isinstance(value, dict) else {}
        return {key: fill(value.get(key), inner) for key, inner in shape.items()}
    if isinstance(shape, tuple):
        return [fill(item, shape[0]) for item in value] if isinstance(value, list) else []
    if shape == NUMBER:
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if shape == FLAG:
        return value if isinstance(value, bool) else None
    # A thing with numbers of its own, like a measured chip, is still called by its name.
    value = value.get("name") if isinstance(value, dict) else value
    return None if value is None or isinstance(value, dict | list) else str(value)
