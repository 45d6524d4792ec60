"""Policies are values: when they fire, and what they refuse."""

import pytest

from tilesieve.policies import Cosine, Every, Policy, Scoring, k_from_cost, window


def test_every_fires_at_the_nth_step():
    assert [Every(4).due(age, 1.0, False) for age in range(1, 9)] == [False] * 3 + [True] * 5
    assert Every(1).due(1, 1.0, False)


@pytest.mark.parametrize(
    ("similarity", "previous", "due"),
    [
        (0.96, True, False), (0.95, True, False), (0.95, False, False),
        (0.94, True, True), (0.94, False, False), (0.90, True, True), (0.90, False, False),
        (0.899, False, True), (-1.0, False, True), (float("nan"), False, True),
    ],
)  # fmt: skip
def test_cosine_has_two_thresholds_and_a_memory(similarity, previous, due):
    assert Cosine().due(1, similarity, previous) is due


def test_cosine_does_not_keep_a_set_for_ever():
    assert not Cosine(longest=8).due(7, 1.0, False)
    assert Cosine(longest=8).due(8, 1.0, False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Policy(k=0), "k is 0"),
        (lambda: Policy(k=3, first=2, last=2), "first is 2 and last 2.*k = 3"),
        (lambda: Policy(k=3, share="heads"), "share is 'heads'; allowed: layer, kv_head, q_head"),
        (lambda: Policy(k=3, local_k=0), "local_k is 0"),
        (lambda: Every(0), "steps is 0"),
        (lambda: Cosine(reuse=0.8, reselect=0.9), "reselect is 0.9 and reuse 0.8"),
        (lambda: Scoring("prefix"), "d_score is None"),
        (lambda: Scoring("exact", 16), "d_score is 16"),
        (lambda: Scoring("pairs_slow", 3), "d_score is 3; allowed: an even number"),
        (lambda: Scoring("prefix", 16, "int8"), "format is 'int8'; allowed: score_fp32"),
        (lambda: window(4), "k is 4; a window with 4 sinks"),
    ],
)
def test_wrong_values_are_named(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_window_is_sinks_and_recents():
    policy = window(256)
    assert (policy.k, policy.first, policy.last) == (256, 4, 252)


def test_k_from_cost_solves_the_model():
    shape = {"context": 32768, "width": 128, "columns": 32}
    # Multiply-adds with half a pass for the gather; bytes with a packed gather; fused.
    assert k_from_cost(**shape, passes=1.5) == 19114
    assert k_from_cost(**shape) == 9557
    assert k_from_cost(**shape, passes=1) == 28672
    # Charging attention for q.k alone, as is often done, gives the looser 16384.
    assert k_from_cost(**shape, value_width=0, passes=1.5) == 16384
    assert k_from_cost(context=4096, width=16, columns=64) == 0
    for k, pays in ((9557, True), (9558, False)):
        assert (32768 * 32 + k * 256 * 3 <= 32768 * 256) is pays
