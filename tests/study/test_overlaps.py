"""Overlaps between layers and between queries, against numbers by hand and against Python sets."""

import random

import pytest
import torch

from tilesieve.study import overlaps as module
from tilesieve.study.overlaps import overlaps, stretch
from tilesieve.study.trace import SHARED, Trace


def some(*positions):
    return torch.tensor(positions, dtype=torch.int32)


def drawn(layers=3, heads=(SHARED,), queries=range(40, 60), k=6, seed=0):
    draw = random.Random(seed)
    return Trace(64, {(n, h): {q: some(*sorted(draw.sample(range(q + 1), draw.randint(1, k)))) for q in queries}
                      for n in range(layers) for h in heads})  # fmt: skip


def test_two_layers_by_hand():
    """Query 8: layer 0 has 0 1 2 8, layer 5 has 2 8. Query 9: {0, 9} and {1, 9}."""
    trace = Trace(10, {(0, SHARED): {8: some(0, 1, 2, 8), 9: some(0, 9)}, (5, SHARED): {8: some(2, 8), 9: some(1, 9)}})
    found = overlaps(trace)
    assert (found["k"], found["rows"], found["layer_ids"]) == (4, 2, [0, 5])
    assert found["layers"] == [[1.0, (2 / 4 + 1 / 2) / 2], [(1 + 1 / 2) / 2, 1.0]]
    # One step later: of {0, 9} the 0 was there; of {1, 9} nothing, and 9 could not be.
    assert found["steps"] == [{"lag": 1, "overlap": 0.25, "layers": [0.5, 0.0]}]


def test_a_new_position_counts_as_missed():
    """A window of 4 that moves along: one of four is new at each step, two after two."""
    trace = Trace(64, {(0, SHARED): {q: torch.arange(q - 3, q + 1) for q in range(20, 30)}})
    assert {s["lag"]: s["overlap"] for s in overlaps(trace)["steps"]} == {1: 0.75, 2: 0.5, 4: 0.0, 8: 0.0}


def test_lags_up_to_64():
    trace = Trace(300, {(0, SHARED): {q: some(0, q) for q in range(100, 228)}})
    found = overlaps(trace)
    assert [s["lag"] for s in found["steps"]] == [1, 2, 4, 8, 16, 32, 64]
    assert all(s["overlap"] == 0.5 for s in found["steps"]) and found["rows"] == 128


@pytest.mark.parametrize("heads", [(SHARED,), (0, 2)])
def test_against_python_sets(heads, monkeypatch):
    trace = drawn(heads=heads)
    whole = overlaps(trace)
    monkeypatch.setattr(module, "_ALIVE", 1)  # one query, one layer at a time
    apart = overlaps(trace)
    assert apart["steps"] == whole["steps"]
    # Sums in another order.
    assert torch.allclose(torch.tensor(apart["layers"]), torch.tensor(whole["layers"]), rtol=1e-6)
    for i in range(3):
        for j in range(3):
            pairs = [
                ({*trace.picks[i, h][q].tolist()}, {*trace.picks[j, h][q].tolist()})
                for h in heads
                for q in range(40, 60)
            ]
            assert whole["layers"][i][j] == pytest.approx(sum(len(a & b) / len(a) for a, b in pairs) / len(pairs))
        for step in whole["steps"]:
            rows = [trace.picks[i, h] for h in heads]
            pairs = [
                ({*r[q].tolist()}, {*r[q - step["lag"]].tolist()}) for r in rows for q in range(40 + step["lag"], 60)
            ]
            want = sum(len(a & b) / len(a) for a, b in pairs) / len(pairs)
            assert step["layers"][i] == pytest.approx(want)


def test_heads_are_compared_with_their_like():
    """Head 0 of layer 0 is head 0 of layer 1, and the same for head 3; across heads nothing is common."""
    a, b = {q: some(1, 2) for q in (8, 9)}, {q: some(5, 6) for q in (8, 9)}
    trace = Trace(10, {(0, 0): a, (0, 3): b, (1, 0): a, (1, 3): b})
    assert overlaps(trace)["layers"] == [[1.0, 1.0], [1.0, 1.0]]
    # A set for all heads is every head's: layer 2 agrees with one of the two.
    trace = Trace(10, {(0, 0): a, (0, 3): b, (2, SHARED): a})
    assert overlaps(trace)["layers"][0][1] == 0.5


def test_queries_that_are_not_consecutive():
    trace = Trace(
        64, {(0, SHARED): {q: some(0, q) for q in (5, 20, 40)}, (1, SHARED): {q: some(0) for q in (5, 20, 40)}}
    )
    found = overlaps(trace)
    assert found["steps"] == [] and found["rows"] == 3
    assert found["layers"] == [[1.0, 0.5], [1.0, 1.0]]


def test_what_was_not_recorded_or_is_empty_does_not_count():
    trace = Trace(
        64,
        {(0, SHARED): {8: some(1, 2), 9: some(1, 3)}, (1, SHARED): {9: some(3)}, (2, SHARED): {8: some(), 9: some()}},
    )
    found = overlaps(trace)
    assert found["layers"] == [[1.0, 0.5, 0.0], [1.0, 1.0, 0.0], [None, None, None]]
    assert found["steps"] == [{"lag": 1, "overlap": 0.5, "layers": [0.5, None, None]}]


def test_only_the_last_of_a_long_recording(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 5)
    assert overlaps(drawn())["rows"] == 5


def test_stretch():
    assert stretch([1, 2, 3, 7, 9, 10, 11, 20]) == [9, 10, 11]
    assert stretch([4, 5, 6, 9, 10]) == [4, 5, 6]
    assert stretch([3]) == [3] and stretch([1, 3]) == [3] and stretch([]) == []
