"""Each symptom fires on the numbers it is meant for, on the right side of its threshold, and none on dense."""

import copy
import random

import pytest
import torch

from tilesieve.study.diagnose import diagnose
from tilesieve.study.looks import looks
from tilesieve.study.plan import Plan
from tilesieve.study.run import run_study
from tilesieve.study.trace import Trace


def look(layer=0, near=0.6, spread=0.2, stay=0.5, drift=0.1, run="exact-64"):
    return {"run": run, "layer": layer, "head": -1, "queries": [100, 900], "count": [64, 64], "near": near,
            "spread": spread, "stay": stay, "drift": drift}  # fmt: skip


def rung(name, own=0.001, alone=0.001, side=False):
    return {"name": name, "label": name, "adds": name, "own": own, "alone": alone, "side": side, "worst_at": 7}


def healthy():
    """A study in which nothing is wrong, and every part measured."""
    layers = [{"layer": n, "mass_mean": 0.95, "heads": [0.96, 0.94], "overlap": 0.9} for n in range(4)]
    said = {"tokens_per_second": 12.0}
    run = {"name": "exact-64", "label": "exact", "family": "exact", "k": 64, "mass_mean": 0.95, "delta": 0.01,
           "overlap": 1.0, "layers": layers, "continuation": said, "bytes_per_token": 1, "bytes_dense": 4}  # fmt: skip
    cells = [{"length": 512, "depth": d, "logprob": -0.1, "right": 1.0} for d in (0.1, 0.9)]
    layouts = [{"layout": x, "order": o, "way": w, "seconds": 1.0}
               for x in ("token", "head") for o in ("sorted", "unsorted") for w in ("packed", "fused")]  # fmt: skip
    return {
        "meta": {"tokens": 1024},
        "runs": [
            {"name": "dense", "label": "dense", "family": "dense", "k": None, "mass_mean": 1.0, "delta": 0.0,
             "layers": [], "overlap": None, "continuation": {"tokens_per_second": 10.0}},
            run, {**run, "name": "lowrank-64", "label": "low rank", "family": "lowrank", "overlap": 0.9},
        ],
        "timeline": [look(n) for n in range(4)],
        "sections": {
            "ladder": {"k": 64, "tokens": 1024, "total": 0.004,
                       "rungs": [rung("dense", 0.0, 0.0), rung("approximate"), rung("reuse")]},
            "retrieval": {"k": 64, "ks": [32], "lengths": [512],
                          "runs": [{"name": "dense", "label": "dense", "cells": cells},
                                            {"name": "narrow", "label": "int8", "cells": copy.deepcopy(cells)}]},
            "latent": {"rows": [{"ratio": 8, "where": "before rope", "delta": 0.01}]},
            "gather": {"layouts": layouts, "runs_by_layer": [30.0, 32.0, 40.0],
                       "by_context": [{"context": 256, "seconds": 1.0}, {"context": 1024, "seconds": 1.1}]},
        },
    }  # fmt: skip


def fired(study):
    return {finding["id"] for finding in diagnose(study) if finding["fired"]}


def set_(study, path, value):
    *way, last = path
    for key in way:
        study = study[key]
    study[last] = value


LADDER = ("sections", "ladder", "rungs")
SYMPTOMS = [  # what is wrong, just past its threshold and just before it
    ("retrieval", ("sections", "retrieval", "runs", 1, "cells", 1, "logprob"), -1.2, -1.0),
    ("hidden-head", ("runs", 1, "layers", 2, "heads"), [0.96, 0.6], [0.96, 0.7]),
    ("mass", ("runs", 2, "delta"), 0.06, 0.04),
    ("scores", ("runs", 2, "overlap"), 0.59, 0.61),
    ("latent", ("sections", "latent", "rows", 0, "delta"), 0.021, 0.019),
    ("slower", ("runs", 2, "continuation", "tokens_per_second"), 9.9, 10.0),
    ("gather-grows", ("sections", "gather", "by_context", 1, "seconds"), 1.6, 1.4),
    ("gather-jitter", ("sections", "gather", "runs_by_layer"), [30.0, 32.0, 97.0], [30.0, 32.0, 95.0]),
]  # fmt: skip


def test_nothing_fires_on_a_healthy_study():
    assert fired(healthy()) == set()
    assert all(finding["value"] is not None for finding in diagnose(healthy()))


@pytest.mark.parametrize(("id_", "path", "past", "before"), SYMPTOMS, ids=[s[0] for s in SYMPTOMS])
def test_symptoms(id_, path, past, before):
    study = copy.deepcopy(healthy())
    set_(study, path, before)
    assert fired(study) == set()
    set_(study, path, past)
    assert fired(study) == {id_}


@pytest.mark.parametrize(("id_", "row"), [("local-k", 1), ("reuse", 2)])
def test_stages_of_the_ladder(id_, row):
    study = healthy()
    study["sections"]["ladder"]["rungs"][row]["alone"] = 0.011
    assert fired(study) == set()  # by itself, not where it stands
    study["sections"]["ladder"]["rungs"][row]["own"] = 0.011
    assert fired(study) == {id_, "stage"}
    stage = next(f for f in diagnose(study) if f["id"] == "stage")
    assert study["sections"]["ladder"]["rungs"][row]["label"] in stage["evidence"]


@pytest.mark.parametrize(("id_", "kind"), [("gather-order", {"order": "unsorted", "way": "packed"}),
                                           ("gather-packed", {"order": "sorted", "way": "fused"})])  # fmt: skip
def test_gather_ways(id_, kind):
    study = healthy()
    for row in study["sections"]["gather"]["layouts"]:
        if all(row[key] == value for key, value in kind.items()):
            row["seconds"] = 1.3
    assert fired(study) == {id_}
    # One layout that is good is enough.
    next(r for r in study["sections"]["gather"]["layouts"] if r["seconds"] == 1.3)["seconds"] = 1.1
    assert fired(study) == set()


@pytest.mark.parametrize(
    ("id_", "shown"),
    [
        ("only-recent", {"near": 0.95}), ("global", {"near": 0.3, "spread": 0.7, "stay": 0.4}),
        ("drifting", {"near": 0.4, "drift": 0.6}), ("stuck", {"near": 0.4, "stay": 0.95}),
    ],
)  # fmt: skip
def test_the_four_pictures(id_, shown):
    study = healthy()
    study["timeline"] = [look(n, **shown) for n in range(3)] + [look(3)]
    assert fired(study) == {id_}
    finding = next(f for f in diagnose(study) if f["id"] == id_)
    assert finding["value"] == 0.75 and "3 of 4 layers (0, 1, 2)" in finding["evidence"]
    study["timeline"] = [look(n, **shown) for n in range(2)] + [look(2), look(3)]
    assert fired(study) == set()  # half is not most


def test_retrieval_asks_each_length_for_its_own_k():
    """k 512 of the longest text, 64 of the shortest: the short cells are sparse all the same."""
    study = healthy()
    study["sections"]["retrieval"] |= {"k": 512, "ks": [64], "lengths": [512]}
    study["sections"]["retrieval"]["runs"][1]["cells"][0]["logprob"] = -9.0
    assert fired(study) == {"retrieval"}
    study["sections"]["retrieval"]["ks"] = [512]  # everything selected
    assert fired(study) == set()


def picture_of(picks, length=1024):
    """What fires on the picks of one layer: query -> positions."""
    trace = Trace(length, {(0, -1): {q: torch.tensor(sorted(set(p)), dtype=torch.int32) for q, p in picks.items()}})
    return fired({"meta": {}, "runs": [], "timeline": [{"run": "t", **look} for look in looks(trace)], "sections": {}})


QUERIES = range(127, 1024, 16)


@pytest.mark.parametrize("k", [32, 64, 120])
def test_pictures_from_picks(k):
    dice = random.Random(k)
    assert picture_of({q: range(q - k + 1, q + 1) for q in QUERIES}) == {"only-recent"}
    places = dice.sample(range(3 * k), k - 2)
    assert picture_of({q: [*places, q - 1, q] for q in QUERIES[24:]}) == {"stuck"}
    assert picture_of({q: [*range(20, 18 + k), q - 1, q] for q in QUERIES[24:]}) == {"stuck"}  # a block, too
    far = sorted(dice.sample(range(200), k - 8))
    assert picture_of({q: [*(q - 250 - p for p in far), *range(q - 7, q + 1)] for q in QUERIES[24:]}) == {"drifting"}
    assert picture_of({q: dice.sample(range(q + 1), k) for q in QUERIES}) == {"global"}
    # A few landmarks and the surroundings: what a healthy layer looks like.
    marks = dice.sample(range(100), k // 4)
    assert picture_of({q: [*marks, *range(q - k // 2, q + 1)] for q in QUERIES}) == set()


def test_what_is_not_measured_says_so():
    found = diagnose({"meta": {}, "runs": [], "timeline": [], "sections": {}})
    assert all(f["value"] is None and not f["fired"] and f["evidence"] for f in found)
    assert len({f["id"] for f in found}) == len(found) == 17


def test_none_fires_on_dense(model_folder, text_file, tmp_path):
    """Runs that select everything are dense, whatever they cost."""
    plan = Plan(model_folder, text_file, tokens=128, steps=6, budgets=(128,), budget=128, full=True)
    study = run_study(plan, tmp_path)
    assert len(study["runs"]) == 5 and study["sections"]["ladder"]["k"] == 128 and study["sections"]["latent"]["rows"]
    assert [f["id"] for f in study["findings"] if f["fired"]] == []
