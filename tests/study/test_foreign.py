"""A study of a trace from elsewhere: what it says and what it leaves out."""

import json

import pytest
import torch

from tilesieve.study.foreign import run_trace
from tilesieve.study.trace import SHARED, Trace, write_trace


def traced(path, queries, layers=3, **header):
    """Each layer keeps the first position and the last five."""
    picks = {(n, SHARED): {q: torch.tensor([0, *range(q - 4, q + 1)], dtype=torch.int32) for q in queries}
             for n in range(layers)}  # fmt: skip
    write_trace(Trace(max(queries) + 1, picks, min(queries)), path, **header)
    return path


def test_a_decode_trace(tmp_path):
    path = traced(tmp_path / "engine.jsonl", range(500, 564), model="some-model")
    study = run_trace(path, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "study.json").read_text()) == study
    meta = study["meta"]
    assert {key: meta[key] for key in ("trace", "model", "layers", "steps", "length", "k")} == {
        "trace": "engine.jsonl", "model": "some-model", "layers": 3, "steps": 64, "length": 564, "k": 6,
    }  # fmt: skip
    assert meta["date"] and meta["versions"]["torch"]
    assert study["schema"] == 2 and study["runs"] == [] and isinstance(study["findings"], list)
    assert [(look["run"], look["layer"], look["head"]) for look in study["timeline"]] == [
        ("engine", n, -1) for n in range(3)
    ]
    assert study["overlaps"]["run"] == "engine" and study["overlaps"]["layers"] == [[1.0] * 3] * 3
    # The first position and four of the last five stay from one query to the next.
    assert study["overlaps"]["steps"][0]["overlap"] == pytest.approx(5 / 6)
    assert study["sections"]["gather"]["runs_by_layer"] == [2.0] * 3
    assert study["sections"]["gather"]["hot"][0] == {"size": 6, "hit": pytest.approx(5 / 6)}
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["study.json"]


def test_without_consecutive_queries(tmp_path):
    study = run_trace(traced(tmp_path / "t.jsonl", range(500, 564, 2)), tmp_path)
    assert study["overlaps"]["steps"] == [] and study["overlaps"]["layers"][0][1] == 1.0
    assert study["sections"]["gather"] == {"hot": [], "runs_by_layer": [2.0] * 3, "layer_ids": [0, 1, 2]}
    assert study["meta"]["model"] is None and len(study["timeline"][0]["queries"]) == 32


def test_one_row_of_nothing(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"step": 0, "layer": 0, "head": -1, "positions": []}\n')
    study = run_trace(path, tmp_path / "out")
    assert study["meta"]["k"] == 0 and study["overlaps"]["layers"] == [[None]]
    assert study["timeline"][0]["near"] is None


def test_what_it_refuses(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"step": 3, "layer": 0, "head": -1, "positions": [9]}\n')
    with pytest.raises(ValueError, match="line 1: position 9 lies after its query"):
        run_trace(path, tmp_path / "out")
    assert not (tmp_path / "out" / "study.json").exists()
    with pytest.raises(ValueError, match="cannot write there"):
        run_trace(path, path / "sub")
