"""Laws of gate: what ranks, what weighs, and what neither bias nor batch may move."""

import itertools
import math

import pytest
import torch
from gate_inputs import EPSILONS, SCORES, exact, logits_of, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops.gate.op import gate
from tilesieve.types import Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


# --- scores and weights


@IMPLS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("score", SCORES)
def test_weights_are_the_scores(impl, score, dtype):
    logits = (normal(7, 12) * 4).to(dtype)
    got = gate(logits, k=12, score=score, renormalise=False, impl=impl)
    for t, row in enumerate(logits.tolist()):
        want = exact(row, score)
        assert got.index[t].tolist() == sorted(range(12), key=lambda e: (-want[e], e))
        # One rounding to fp32: half a unit in the last place.
        assert got.weight[t].tolist() == pytest.approx([want[e] for e in got.index[t].tolist()], rel=2.0**-24, abs=0)


@IMPLS
@pytest.mark.parametrize("low", [-10.0, -17.0, -40.0, -87.0, -100.0, -600.0])
def test_tiny_scores_do_not_cancel(impl, low):
    """1 - 1 / (1 + exp(x)) would be 0 from -17 on, an fp32 sigmoid coarse from -87 on; the ratio of two stays."""
    for score in SCORES:
        pair = exact([low, low - 1.0], score)
        ratio = pair[0] / pair[1]
        row = logits_of([low, low - 1.0, *([0.0] * (score == "softmax"))])
        ids = torch.tensor([[0, 1]])
        got = gate(row, ids=ids, score=score, epsilon="none", impl=impl).weight[0].double()
        assert (got[0] / got[1]).item() == pytest.approx(ratio, rel=3e-7)  # two fp32 roundings
        assert got.sum().item() == pytest.approx(1.0, rel=2e-7)
    if low > -87:
        got = gate(logits_of([low]), k=1, renormalise=False, impl=impl)
        assert got.weight.item() == pytest.approx(math.exp(low) / (1 + math.exp(low)), rel=2.0**-24)


@IMPLS
def test_softmax_does_not_see_a_shift_and_does_not_overflow(impl):
    logits = (normal(5, 9) * 8).round() / 4  # shifts by 4096 stay exact
    want = gate(logits, k=4, score="softmax", renormalise=False, impl=impl)
    for shift in (-4096.0, 4096.0):
        assert same(gate(logits + shift, k=4, score="softmax", renormalise=False, impl=impl), want)
    got = gate(logits_of([3e38, -3e38, 3e38, 1.0]), k=4, score="softmax", impl=impl)
    assert got.index.tolist() == [[0, 2, 1, 3]] and got.weight.tolist() == [[0.5, 0.5, 0.0, 0.0]]


@IMPLS
def test_sums_of_renormalised_weights(impl):
    for score, k in itertools.product(SCORES, (1, 3, 16)):
        got = gate(normal(20, 16), k=k, score=score, scale=2.5, impl=impl)
        # k weights, each rounded once.
        assert torch.allclose(got.weight.double().sum(-1), torch.full((20,), 2.5).double(), rtol=k * 2.0**-24)


@IMPLS
@pytest.mark.parametrize("path", ["plain", "groups", "bias", "hashed", "masked"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("renormalise", "epsilon"), [(False, "add"), *((True, e) for e in EPSILONS)])
def test_the_scale_is_applied_once_on_every_path(impl, path, score, renormalise, epsilon):
    """B08: also without renormalising. A power of two moves no digit, so the bits are those times it."""
    logits = normal(9, 16)
    more = {
        "plain": {"k": 3},
        "groups": {"k": 3, "groups": 4, "top_groups": 2},
        "bias": {"k": 3, "groups": 4, "top_groups": 2, "bias": normal(1, 16, seed=4)[0]},
        "hashed": {"ids": torch.tensor([[5, 0, 11]] * 9)},
        "masked": {"k": 3, "mask": torch.arange(9) % 2 == 0},
    }[path]
    more |= {"score": score, "renormalise": renormalise, "epsilon": epsilon, "impl": impl}
    once = gate(logits, **more)
    for scale in (4.0, 0.25, 0.0, -2.0):
        got = gate(logits, scale=scale, **more)
        assert torch.equal(got.index, once.index) and torch.equal(got.weight, once.weight * scale)
    got = gate(logits, scale=2.5, **more)
    assert torch.allclose(got.weight, once.weight * 2.5, rtol=2.0**-23)


@IMPLS
def test_the_bias_selects_and_does_not_weigh(impl):
    """B04: equal logits, bias [10,0,0,0], k = 2."""
    bias = torch.tensor([10.0, 0.0, 0.0, 0.0])
    got = gate(torch.zeros(1, 4), k=2, bias=bias, impl=impl)
    assert got.index.tolist() == [[0, 1]] and got.weight.tolist() == [[0.5, 0.5]]
    got = gate(torch.zeros(1, 4), k=2, bias=-bias, renormalise=False, impl=impl)
    assert got.index.tolist() == [[1, 2]] and got.weight.tolist() == [[0.5, 0.5]]
    # The class: whatever bias picks, weights are those of the same ids without any bias.
    for score in SCORES:
        logits, bias = normal(40, 16), normal(1, 16, seed=3)[0] * 3
        with_bias = gate(logits, k=5, bias=bias, score=score, impl=impl)
        plain = gate(logits, ids=with_bias.index, score=score, impl=impl)
        assert same(with_bias, plain)
        assert not torch.equal(with_bias.index, gate(logits, k=5, score=score, impl=impl).index)


@IMPLS
@pytest.mark.parametrize("groups", [{}, {"groups": 4, "top_groups": 2}])
def test_chosen_scores_that_underflow_stay_finite(impl, groups):
    """B06: a large bias selects experts of logit -100; the same with groups and without."""
    logits = torch.zeros(3, 16)
    logits[:, [0, 1, 4, 5]] = -100.0
    bias = torch.zeros(16)
    bias[[0, 1, 4, 5]] = 50.0
    for epsilon in ("add", "clamp"):
        got = gate(logits, k=4, bias=bias, epsilon=epsilon, scale=2.5, impl=impl, **groups)
        assert got.index.tolist() == [[0, 1, 4, 5]] * 3
        # 3.7e-44 / 1e-20
        assert torch.allclose(got.weight, torch.tensor(2.5 * math.exp(-100) / 1e-20), rtol=1e-6, atol=0)
    got = gate(logits, k=4, bias=bias, epsilon="none", impl=impl, **groups)
    assert got.weight.tolist() == [[0.25] * 4] * 3  # fp64 does not underflow here
    logits[logits < 0] = -1e4  # here everything does
    assert gate(logits, k=4, bias=bias, impl=impl, **groups).weight.eq(0).all()
    assert gate(logits, k=4, bias=bias, epsilon="clamp", impl=impl, **groups).weight.eq(0).all()
    assert gate(logits, k=4, bias=bias, epsilon="none", impl=impl, **groups).weight.isnan().all()
    assert gate(logits, k=4, bias=bias, renormalise=False, impl=impl, **groups).weight.eq(0).all()


@IMPLS
def test_epsilon_rules_by_hand(impl):
    """One expert of sigmoid s: add s / (s + 1e-20), clamp s / max(s, 1e-20), none 1."""
    x = math.log(1e-20)
    s = math.exp(torch.tensor(x).item())
    row = logits_of([x])
    want = {"add": s / (s + 1e-20), "clamp": s / max(s, 1e-20), "none": 1.0}
    for epsilon in EPSILONS:
        assert gate(row, k=1, epsilon=epsilon, impl=impl).weight.item() == pytest.approx(want[epsilon], rel=1e-7)


# --- order and ties


@IMPLS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("score", SCORES)
def test_equal_logits_pick_the_lowest_ids_at_any_batch(impl, score, dtype):
    """B11: E = 256, k = 8, batch 1 and batch 64, with groups too."""
    for tokens, more in itertools.product((1, 64), ({}, {"groups": 8, "top_groups": 4}, {"bias": torch.zeros(256)})):
        got = gate(torch.full((tokens, 256), 0.3, dtype=dtype), k=8, score=score, impl=impl, **more)
        assert got.index.tolist() == [list(range(8))] * tokens
        assert got.weight.eq(0.125).all() and got.count.eq(8).all()


@IMPLS
def test_ties_are_those_of_the_selection_score_in_fp32(impl):
    # Sigmoids of 20 and 30 are both 1 in fp32, those of 10 and 20 are not.
    assert gate(logits_of([10.0, 20.0, 30.0, 25.0]), k=4, impl=impl).index.tolist() == [[1, 2, 3, 0]]
    # A bias that swallows a difference of scores makes a tie, whatever the scores.
    bias = torch.full((3,), 1e9)
    assert gate(logits_of([-1.0, 1.0, 0.0]), k=3, bias=bias, impl=impl).index.tolist() == [[0, 1, 2]]
    # -0 equals +0: scores 0, and a bias of either sign.
    bias = torch.tensor([-0.0, 0.0, -0.0, 0.0])
    got = gate(torch.full((1, 4), -1e4), k=4, bias=bias, impl=impl)
    assert got.index.tolist() == [[0, 1, 2, 3]]


@IMPLS
def test_the_order_is_descending_selection_score(impl):
    logits, bias = normal(30, 24), normal(1, 24, seed=9)[0] * 0.3
    got = gate(logits, k=24, bias=bias, impl=impl)
    selection = logits.double().sigmoid().float() + bias
    assert bool((selection.gather(1, got.index.long()).diff(dim=1) <= 0).all())
    assert bool((got.weight.diff(dim=1) > 0).any())  # and so not of weights


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_choice_is_the_best_of_the_best_groups(data):
    """Against a full comparison in Python, on a few values so that ties are everywhere."""
    size, groups = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    top, experts = data.draw(st.integers(1, groups)), groups * size
    k = data.draw(st.integers(0, top * size))
    score, group_score = data.draw(st.sampled_from(SCORES)), data.draw(st.sampled_from(["top2", "max"]))
    number = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, math.nan, -math.inf])
    row = data.draw(st.lists(number, min_size=experts, max_size=experts))
    bias = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.25]), min_size=experts, max_size=experts))
    results = [
        gate(logits_of(row), k=k, score=score, bias=torch.tensor(bias), groups=groups, top_groups=top,
             group_score=group_score, impl=impl)
        for impl in ("reference", "cpu")
    ]  # fmt: skip
    assert same(*results)
    picks = results[0].index[0].tolist()
    numbers = [x for x in row if not math.isnan(x)]
    if score == "softmax" and (not numbers or max(numbers) == -math.inf):
        scores = [0.0] * len(numbers)
    else:
        scores = [0.0 if x == -math.inf else s for x, s in zip(numbers, exact_all(numbers, score), strict=True)]
    places = iter(torch.tensor(scores, dtype=torch.float64).float().tolist())
    chosen = [math.nan if math.isnan(x) else (torch.tensor(next(places)) + b).item()
              for x, b in zip(row, bias, strict=True)]  # fmt: skip

    def rank(value):
        return (math.isnan(value), 0.0 if math.isnan(value) else -value)

    def worth(g):
        best = sorted((v for v in chosen[g * size : (g + 1) * size] if not math.isnan(v)), reverse=True)
        if not best:
            return math.nan
        if group_score == "max" or len(best) == 1:
            return best[0]
        return (torch.tensor(best[0]) + torch.tensor(best[1])).item()

    kept = sorted(range(groups), key=lambda g: (rank(worth(g)), g))[:top]
    mine = [e for e in range(experts) if e // size in kept]
    assert picks == sorted(mine, key=lambda e: (rank(chosen[e]), e))[:k]
    assert results[0].count.item() == k and len(set(picks)) == k


def exact_all(row, score):
    return [0.0 if x == -math.inf else s for x, s in zip(row, exact([max(x, -700.0) for x in row], score), strict=True)]


@IMPLS
def test_a_row_is_the_same_in_any_batch(impl):
    logits = (normal(300, 64) * 2).round()
    more = {"k": 6, "groups": 8, "top_groups": 3, "bias": normal(1, 64, seed=2)[0].round()}
    for score in SCORES:
        whole = gate(logits, score=score, impl=impl, **more)
        for start, stop in ((0, 1), (7, 8), (299, 300), (3, 130), (100, 300)):
            part = gate(logits[start:stop], score=score, impl=impl, **more)
            cut = slice(start, stop)
            assert same(part, Selection(whole.index[cut], whole.count[cut], whole.weight[cut], "expert"))


def test_the_forms_agree_bit_for_bit_on_many_tokens():
    logits, bias = normal(400, 60).bfloat16(), normal(1, 60, seed=1)[0]
    for score, epsilon in itertools.product(SCORES, EPSILONS):
        more = {"k": 7, "score": score, "epsilon": epsilon, "bias": bias, "groups": 6, "top_groups": 3, "scale": 2.5}
        assert same(gate(logits, impl="reference", **more), gate(logits, impl="cpu", **more))


# --- groups


@IMPLS
def test_a_group_is_worth_its_two_best_with_a_bias_and_its_best_without(impl):
    """B03: biased scores [0.9, 0, 0.6, 0.5] in 2 groups; 0.9 + 0 < 0.6 + 0.5."""
    row, bias = logits_of([0.0] * 4), torch.tensor([0.4, -0.5, 0.1, 0.0])
    assert gate(row, k=2, bias=bias, groups=2, top_groups=1, impl=impl).index.tolist() == [[2, 3]]
    assert gate(row, k=2, bias=bias, groups=2, top_groups=1, group_score="max", impl=impl).index.tolist() == [[0, 1]]
    scores = torch.tensor([[0.9, 1e-9, 0.6, 0.5]])
    logits = (scores / (1 - scores)).log()
    assert gate(logits, k=2, groups=2, top_groups=1, impl=impl).index.tolist() == [[0, 1]]
    assert gate(logits, k=2, groups=2, top_groups=1, group_score="top2", impl=impl).index.tolist() == [[2, 3]]


@IMPLS
def test_an_excluded_group_never_wins_with_negative_scores(impl):
    """Masking a dropped group with 0 instead of leaving it out would let it beat biased scores below 0."""
    bias = torch.full((12,), -5.0)
    bias[:4] = torch.tensor([-4.0, -4.1, -9.0, -9.5])  # the best group, with experts worse than any other's
    got = gate(torch.zeros(5, 12), k=4, bias=bias, groups=3, top_groups=1, impl=impl)
    assert got.index.tolist() == [[0, 1, 2, 3]] * 5
    # NaN and -inf inside the kept group still come before anything outside it.
    logits = torch.zeros(1, 12)
    logits[0, 2], bias[3] = torch.nan, -torch.inf
    got = gate(logits, k=4, bias=bias, groups=3, top_groups=1, impl=impl)
    assert got.index.tolist() == [[0, 1, 3, 2]] and got.weight[0, 3] == 0


@IMPLS
@pytest.mark.parametrize("bias", [None, "zeros"])
def test_groups_of_one_expert(impl, bias):
    """B10: E = 8 in 8 groups; a group is worth its one score."""
    logits = logits_of([3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0])
    bias = None if bias is None else torch.zeros(8)
    for group_score in (None, "top2", "max"):
        got = gate(logits, k=3, bias=bias, groups=8, top_groups=4, group_score=group_score, impl=impl)
        assert got.index.tolist() == [[5, 7, 4]]


@IMPLS
def test_a_group_with_one_number_is_worth_that_number(impl):
    nan = torch.nan
    logits = logits_of([2.0, nan, nan, 1.0, 0.5, -9.0], [nan, nan, nan, 0.0, nan, -3.0])
    got = gate(logits, k=3, groups=2, top_groups=1, group_score="top2", impl=impl)
    # sigmoid(2) = 0.88 < sigmoid(1) + sigmoid(0.5) = 1.35; a group of NaN is last.
    assert got.index.tolist() == [[3, 4, 5], [3, 5, 4]]
    assert got.weight[1, 2] == 0
    got = gate(torch.full((1, 6), nan), k=3, groups=2, top_groups=1, group_score="top2", impl=impl)
    assert got.index.tolist() == [[0, 1, 2]] and got.weight.eq(0).all()


@IMPLS
@pytest.mark.parametrize("experts", [1, 7, 100, 384, 512, 1000])
def test_any_number_of_experts_and_any_k(impl, experts):
    """B12: no tiers of supported shapes."""
    logits = normal(3, experts)
    for k in {1, min(10, experts), experts}:
        got = gate(logits, k=k, impl=impl)
        assert torch.equal(got.index.long(), logits.sort(dim=1, descending=True, stable=True).indices[:, :k])
