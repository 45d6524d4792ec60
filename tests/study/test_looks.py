"""Looks: cells, and what is said of where the picks lie, against numbers by hand."""

import pytest
import torch

from tilesieve.study.looks import CELLS, hexed, looks, thinned
from tilesieve.study.trace import SHARED, Trace


def some(*positions):
    return torch.tensor(positions, dtype=torch.int32)


def look(length, picks, **more):
    (found,) = looks(Trace(length, {(0, SHARED): picks}), **more)
    return found


def test_cells_of_a_row():
    # 10 positions in cells of 1, 12 bits: 1000 0100 0100.
    assert hexed(some(0, 5, 9), 1, 10) == "844"
    # Cells of 3: positions 0..2, 3..5, 6..8, 9: the first and the last.
    assert hexed(some(2, 9), 3, 10) == "9"
    assert hexed(some(), 1, 4) == "0"


@pytest.mark.parametrize("length", [1, 255, 256, 257, 4096, 100_000])
def test_every_pick_has_its_cell(length):
    picks = torch.randperm(length)[:50].sort().values.int()
    found = look(length, {length - 1: picks})
    (cells,) = found["cells"]
    bits = "".join(f"{int(digit, 16):04b}" for digit in cells)
    assert len(bits) <= CELLS + 3
    assert {n for n, bit in enumerate(bits) if bit == "1"} == {p // found["bin"] for p in picks.tolist()}


def test_near_and_spread_by_hand():
    """320 positions: near are the last 20, cells hold 2."""
    found = look(320, {319: some(0, 1, 40, 299, 300, 319)})
    assert found["bin"] == 2 and found["count"] == [6]
    assert found["near"] == pytest.approx(2 / 6)  # 300 is the first of 300..319
    assert found["spread"] == 3 / 4  # four others could touch four cells; they touch 0, 20 and 149


def test_near_of_a_window_and_of_an_even_spread():
    window = {q: torch.arange(q - 31, q + 1) for q in range(100, 1024, 50)}
    even = {q: torch.arange(0, q, 8) for q in range(500, 1024, 50)}
    assert look(1024, window)["near"] == 1.0 and look(1024, window)["spread"] == 0.0
    found = look(1024, even)
    assert found["near"] < 0.3 and found["spread"] == 1.0  # cells of 4, a pick each 8


def test_queries_without_a_choice_say_nothing():
    """Query 9 sees less than what counts as near, query 30 picks all it sees: only query 60 chose."""
    found = look(64, {9: some(8, 9), 30: torch.arange(31), 60: some(0, 60)})
    assert found["near"] == 0.5 and found["stay"] is None
    assert look(64, {9: some(8, 9), 30: torch.arange(31)})["near"] is None
    assert look(64, {40: some()})["near"] is None


def test_stay_is_of_the_query_drawn_before():
    found = look(128, {100: some(0, 1, 2, 3), 110: some(2, 3, 4, 110), 120: some(3, 120)})
    assert found["stay"] == pytest.approx((2 / 4 + 1 / 2) / 2)


@pytest.mark.parametrize(("step", "want"), [(0, 0.0), (10, 1.0), (9, 0.0)])
def test_drift_of_a_moving_set(step, want):
    """Three picks far behind the first query; they move by `step` where the query moves by 10."""
    picks = {q: some(*(p + n * step for p in (3, 8, 21))) for n, q in enumerate(range(100, 200, 10))}
    assert look(256, picks)["drift"] == want


def test_drift_is_of_distant_picks_by_hand():
    """Of the four picks of 120, two are recent; 14 was 4 for the query before (kept its distance), 50 was not there."""
    found = look(128, {110: some(4, 60, 108, 110), 120: some(14, 50, 118, 120)})
    assert found["drift"] == 0.5
    assert look(128, {110: some(109, 110), 120: some(119, 120)})["drift"] is None  # nothing is distant
    assert look(64, {40: some(1)})["drift"] is None  # and one query has none before it


def test_thinned_is_even_over_positions():
    recorded = [*range(15, 896, 16), *range(896, 1024)]
    assert thinned(recorded, 64) == list(range(15, 1024, 16))
    assert thinned([1, 2, 9], 3) == [1, 2, 9]


def test_one_look_per_layer_and_head():
    trace = Trace(64, {(2, 0): {9: some(1)}, (0, SHARED): {9: some(1)}, (2, 3): {9: some(1), 11: some(2)}})
    found = [(f["layer"], f["head"], f["queries"]) for f in looks(trace)]
    assert found == [(0, -1, [9]), (2, 0, [9]), (2, 3, [9, 11])]
