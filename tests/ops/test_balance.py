"""Laws of the balance of experts: its statistics, its bounds, and the step that evens loads out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops import catalogue, run
from tilesieve.ops.gate.balance import Balance, Padding, balance, loads, padding
from tilesieve.ops.gate.op import gate
from tilesieve.ops.gate_bias_update.op import gate_bias_update
from tilesieve.types import Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=16)
# 8 experts, 128 assignments: the busiest has 53, and 10 blocks of 32 hold them all.
SKEWED = [53, 33, 20, 10, 6, 3, 2, 1]


def test_a_skewed_routing_by_hand():
    assert sum(SKEWED) == 128
    assert padding(SKEWED, 32) == Padding(rows=128, padded=320, blocks=10, waste=1.5)
    found = balance(SKEWED)
    assert (found.rows, found.hottest, found.idle) == (128, 53, 0)
    assert found.hottest_over_mean == 53 / 16 and round(found.hottest_over_mean, 2) == 3.31
    assert found.imbalance == pytest.approx(math.sqrt(sum((c - 16) ** 2 for c in SKEWED) / 8) / 16)
    assert balance(torch.tensor(SKEWED)) == found and padding(torch.tensor(SKEWED), 32).waste == 1.5
    # 53 is the only integer that rounds to 3.31 over a mean of 16.
    assert [n for n in range(129) if round(n / 16, 2) == 3.31] == [53]


def test_blocks_by_hand():
    # A full block stays full, an expert without rows takes none.
    assert padding([128, 0, 129], 128) == Padding(257, 384, 3, 127 / 257)
    assert padding([4096] * 8, 128) == Padding(32768, 32768, 256, 0.0)
    assert padding(SKEWED, 1).waste == 0.0
    assert padding([1] * 256, 128).waste == 127.0
    assert padding([0, 0], 64) == Padding(0, 0, 0, 0.0)
    assert balance([0, 0]) == Balance(0, 0, 2, 0.0, 0.0) and balance([]) == Balance(0, 0, 0, 0.0, 0.0)
    assert balance([5, 5, 5]) == Balance(15, 5, 0, 1.0, 0.0)
    assert balance([8, 0]) == Balance(8, 8, 1, 2.0, 1.0)


@settings(max_examples=100, deadline=None)
@given(COUNTS, st.sampled_from([1, 16, 32, 64, 128]))
def test_padding_is_bounded(counts, block):
    found = padding(counts, block)
    hit = sum(count > 0 for count in counts)
    assert found.rows <= found.padded <= found.rows + hit * (block - 1) and found.padded == found.blocks * block
    assert balance(counts).hottest_over_mean <= len(counts)
    if found.rows:
        assert balance(counts).hottest_over_mean >= 1 - 1e-12
        assert found.waste == pytest.approx(found.padded / found.rows - 1)


@IMPLS
@pytest.mark.parametrize(("experts", "k"), [(8, 4), (8, 2), (8, 1), (256, 8), (5, 5)])
def test_no_routing_without_repeats_is_hotter_than_experts_over_picks(impl, experts, k):
    """An expert takes a token once: at most T of T * k rows, so E / k times the mean. 3.31 of 8 experts
    needs k <= 2, or repeats."""
    generator = torch.Generator().manual_seed(0)
    bias = torch.zeros(experts)
    bias[0] = 100.0
    for more in ({}, {"bias": bias}):
        selection = gate(torch.randn(32, experts, generator=generator), k=k, impl=impl, **more)
        found = balance(loads(selection, experts))
        assert found.rows == 32 * k and found.hottest <= 32
        assert found.hottest_over_mean <= experts / k
    assert found.hottest == 32 and found.hottest_over_mean == experts / k  # the bound is reached


def test_the_skewed_routing_cannot_come_from_four_of_eight():
    assert 53 / 16 > 8 / 4 and 128 // 4 < 53  # 32 tokens, each in an expert at most once
    assert 53 / 16 <= 8 / 2 and 128 // 2 >= 53
    # With repeats it can: one token may then fill several rows of an expert.
    index = torch.tensor([e for e, count in enumerate(SKEWED) for _ in range(count)]).view(32, 4).int()
    found = loads(Selection(index, torch.full((32,), 4).int(), None, "expert"), 8)
    assert found.tolist() == SKEWED


def test_loads_count_what_is_valid():
    index = torch.tensor([[0, 2, -1], [2, 1, 0], [5, 2, -7], [1, 1, 1]], dtype=torch.int32)
    count = torch.tensor([2, 2, 3, 0], dtype=torch.int32)  # past count nothing counts, whatever stands there
    assert loads(Selection(index, count, None, "expert"), 4).tolist() == [1, 1, 3, 0]
    none = Selection(torch.empty(0, 3).int(), torch.empty(0).int(), None, "expert")
    assert loads(none, 4).tolist() == [0] * 4
    assert loads(Selection(index, count, None, "expert"), 0).tolist() == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 20), st.integers(1, 12), st.data())
def test_loads_sum_to_the_picks(tokens, experts, data):
    k = data.draw(st.integers(0, experts))
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens)), dtype=torch.bool)
    selection = gate(torch.randn(tokens, experts), k=k, mask=mask)
    found = loads(selection, experts)
    assert int(found.sum()) == int(mask.sum()) * k == int(selection.count.sum())
    live = selection.index[mask].flatten().long()
    assert torch.equal(found, torch.bincount(live, minlength=experts))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: balance([1, -1]), r"loads is \[1, -1\]"),
        (lambda: balance([1.5]), r"loads is \[1.5\]"),
        (lambda: padding([1], 0), "block is 0"),
        (lambda: loads(Selection(torch.zeros(1, 1).int(), torch.ones(1).int(), None, "key"), 4), "space is 'key'"),
        (lambda: loads(Selection(torch.zeros(1, 1).int(), torch.ones(1).int(), None, "expert"), -1), "experts is -1"),
    ],
)
def test_wrong_statistics_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# --- the step


@IMPLS
def test_a_step_by_hand(impl):
    bias = torch.tensor([0.5, -0.25, 0.0, 1.0])
    got = gate_bias_update(bias, torch.tensor([10, 4, 6, 4]), rate=0.125, impl=impl)  # mean 6
    assert got.tolist() == [0.375, -0.125, 0.0, 1.125]
    assert bias.tolist() == [0.5, -0.25, 0.0, 1.0]  # a new bias, the old one is as it was
    two = gate_bias_update(torch.stack([bias, bias]), torch.tensor([[10, 4, 6, 4], [1, 1, 1, 1]]).int(), rate=0.125,
                           impl=impl)  # fmt: skip
    assert torch.equal(two[0], got) and torch.equal(two[1], bias)


@IMPLS
def test_an_expert_at_the_mean_keeps_its_bias_exactly(impl):
    """A mean in fp32 would be off: 1/3 of these sums, or loads past 2^24."""
    for counts in ([1, 1, 1], [2**40 + 1] * 3, [16777217] * 7, [2**40, 2**40 + 2, 2**40 + 1]):
        bias = torch.randn(len(counts))
        got = gate_bias_update(bias, torch.tensor(counts), rate=0.5, impl=impl)
        assert got[-1] == bias[-1]
    got = gate_bias_update(torch.zeros(3), torch.tensor([2**40, 2**40 + 2, 2**40 + 1]), rate=0.5, impl=impl)
    assert got.tolist() == [0.5, -0.5, 0.0]


@IMPLS
def test_the_sum_is_rounded_once(impl):
    bias = torch.randn(64, generator=torch.Generator().manual_seed(1))
    counts = torch.arange(64)
    got = gate_bias_update(bias, counts, rate=1e-3, impl=impl)
    want = bias.double() + 1e-3 * (31.5 - counts.double()).sign()
    assert torch.equal(got, want.float())
    assert got[0] > bias[0] and got[-1] < bias[-1]


@IMPLS
def test_out_may_be_the_bias(impl):
    bias = torch.randn(8)
    want = gate_bias_update(bias, torch.arange(8), impl=impl)
    got = gate_bias_update(bias, torch.arange(8), out=bias, impl=impl)
    assert got is bias and torch.equal(bias, want)


def test_steps_even_out_a_skewed_router():
    """Expert 0 and 1 start far ahead; after some steps no expert is much above the mean, and weights never see it."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(512, 16, generator=generator)
    logits[:, :2] += 2.0
    bias = torch.zeros(16)
    before = balance(loads(gate(logits, k=2), 16))
    for _ in range(200):
        bias = gate_bias_update(bias, loads(gate(logits, k=2, bias=bias), 16), rate=5e-3)
    selection = gate(logits, k=2, bias=bias)
    after = balance(loads(selection, 16))
    assert before.hottest_over_mean > 4 and before.imbalance > 1
    assert after.hottest_over_mean < 1.3 and after.imbalance < 0.2 and after.idle == 0
    assert torch.equal(selection.weight, gate(logits, ids=selection.index).weight)


def test_cost_of_a_step_by_hand():
    cost = catalogue.cost("gate_bias_update")(layers=58, experts=256)
    assert (cost.flops, cost.bytes_min) == (4 * 58 * 256, 58 * 256 * 16)


def test_checked_refuses_negative_loads():
    with run.checked(), pytest.raises(ValueError, match="loads holds -2"):
        gate_bias_update(torch.zeros(2), torch.tensor([3, -2]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"bias": torch.zeros(3).double()}, "bias is torch.float64"),
        ({"bias": torch.zeros(1, 1, 3)}, r"bias is \(1, 1, 3\); allowed: fp32 \[E\] or \[L, E\]"),
        ({"bias": None}, "bias is NoneType"),
        ({"loads": torch.zeros(3)}, "loads is torch.float32"),
        ({"loads": torch.zeros(4).int()}, r"loads has shape \(4,\)"),
        ({"loads": torch.zeros(1, 3).int()}, r"loads has shape \(1, 3\)"),
        ({"rate": -1e-3}, "rate is -0.001"),
        ({"rate": math.inf}, "rate is inf"),
        ({"out": torch.zeros(4)}, r"out has shape \(4,\)"),
    ],
)
def test_a_wrong_step_is_named(change, match):
    with pytest.raises(ValueError, match=match):
        gate_bias_update(**{"bias": torch.zeros(3), "loads": torch.zeros(3).int(), **change})
