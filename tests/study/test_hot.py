"""The hot buffer, against least-recently-used lists by hand and a plain simulation."""

import random
from collections import OrderedDict

import pytest
import torch

from tilesieve.study.hot import hits, hot
from tilesieve.study.trace import SHARED, Trace


def some(*positions):
    return torch.tensor(positions, dtype=torch.int32)


def test_a_buffer_of_three_by_hand():
    """1 2 -> keeps 2 1; then 3 comes -> 3 2 1; then 1 is used -> 4 1 3, and 2 has gone."""
    rows = [some(1, 2), some(3), some(1, 4), some(2, 3)]
    assert hits(rows, [3]) == [[0.0], [0.0], [0.5], [0.5]]
    # With four places 2 is still there.
    assert hits(rows, [4])[3] == [1.0]


def test_a_buffer_smaller_than_a_set_keeps_its_last():
    assert hits([some(1, 2, 3), some(1, 2, 3)], [1, 2]) == [[0.0, 0.0], [1 / 3, 2 / 3]]
    assert hits([some(1, 2, 3), some(1)], [2])[1] == [0.0]


def plain(rows, size):
    """The same one position at a time."""
    kept, found = OrderedDict(), []
    for row in rows:
        found.append(sum(p in kept for p in row) / len(row))
        for p in row:
            kept.pop(p, None)
            kept[p] = True
        while len(kept) > size:
            kept.popitem(last=False)
    return found


def test_against_a_plain_simulation():
    draw = random.Random(1)
    rows = [sorted(draw.sample(range(40), 8)) for _ in range(60)]
    sizes = [3, 8, 12, 30]
    found = hits([some(*row) for row in rows], sizes)
    for n, size in enumerate(sizes):
        assert [shares[n] for shares in found] == pytest.approx(plain(rows, size))


def test_the_second_half_of_the_longest_stretch_counts():
    """Queries 50..53: the first two fill the buffer; 52 finds 1 of 2, 53 both. Query 10 is no part of it."""
    picks = {10: some(1, 2), 50: some(5, 6), 51: some(5, 7), 52: some(6, 52), 53: some(6, 52)}
    assert hot(Trace(64, {(0, SHARED): picks}), [1, 2]) == [
        {"size": 2, "hit": (0 + 1) / 2},  # 5 7 when 52 comes
        {"size": 4, "hit": (0.5 + 1) / 2},
    ]


def test_mean_over_layers_and_heads():
    same, new = {q: some(1, 2) for q in range(4, 8)}, {q: some(q) for q in range(4, 8)}
    assert hot(Trace(8, {(0, 0): same, (0, 1): new}), [1]) == [{"size": 2, "hit": 0.5}]


def test_nothing_consecutive():
    assert hot(Trace(8, {(0, SHARED): {1: some(1), 3: some(1)}}), [1.5]) == []


@pytest.mark.parametrize("sizes", [[], [0.0, 1.0], [-1.0]])
def test_sizes_must_be(sizes):
    with pytest.raises(ValueError, match="sizes is .*; allowed: multiples of k, > 0"):
        hot(Trace(8, {(0, SHARED): {1: some(1)}}), sizes)
