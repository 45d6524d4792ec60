"""Laws of gate at its limits: NaN and infinities, masked tokens, given ids; its costs and its refusals."""

import math

import pytest
import torch
from gate_inputs import EPSILONS, SCORES, exact, logits_of, normal, same
from harness import same_bits

from tilesieve.ledger import dense
from tilesieve.ops import catalogue, run
from tilesieve.ops.gate.op import gate
from tilesieve.types import Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


# --- what is not a number, what is masked


@IMPLS
@pytest.mark.parametrize("score", SCORES)
def test_a_nan_logit_ranks_last_and_weighs_nothing(impl, score):
    nan = torch.nan
    logits = logits_of([nan, 0.0, 1.0, nan, -torch.inf], [nan] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    for epsilon in EPSILONS:
        got = gate(logits, k=5, score=score, epsilon=epsilon, impl=impl)
        assert got.index.tolist() == [[2, 1, 4, 0, 3], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]
        assert got.count.tolist() == [5, 5, 5]
        assert got.weight[0, 3:].eq(0).all() and got.weight[1].eq(0).all() and got.weight[0].isfinite().all()
        # The rest of the row weighs as if the NaN were not there.
        clean = gate(logits_of([0.0, 1.0, -torch.inf]), k=3, score=score, epsilon=epsilon, impl=impl)
        assert same_bits(got.weight[0, :3], clean.weight[0])
        assert same_bits(got.weight[2], gate(logits[2:], k=5, score=score, epsilon=epsilon, impl=impl).weight[0])


@IMPLS
def test_infinities_follow_the_formula(impl):
    inf = torch.inf
    row = logits_of([0.0, inf, -inf, 1.0, inf])
    weights = {
        "sigmoid": [1.0, 1.0, 1 / (1 + math.exp(-1)), 0.5, 0.0],
        "softmax": [0.5, 0.5, 0.0, 0.0, 0.0],
        "sqrt_softplus": [inf, inf, math.sqrt(1 + math.log1p(math.exp(-1))), math.sqrt(math.log(2)), 0.0],
    }
    for score, want in weights.items():
        got = gate(row, k=5, score=score, renormalise=False, impl=impl)
        assert got.weight[0].tolist() == pytest.approx(want, rel=1e-7)
        assert got.index[0].tolist() == ([1, 4, 0, 2, 3] if score == "softmax" else [1, 4, 3, 0, 2])
    got = gate(row, k=3, score="sqrt_softplus", impl=impl)
    assert got.weight[0, :2].isnan().all() and got.weight[0, 2] == 0  # inf / inf
    got = gate(torch.full((1, 4), -inf), k=2, score="softmax", impl=impl)
    assert got.index.tolist() == [[0, 1]] and got.weight.eq(0).all()
    bias = torch.tensor([0.0, -inf, inf, 0.0, torch.nan])
    got = gate(torch.zeros(1, 5), k=5, bias=bias, impl=impl)
    assert got.index.tolist() == [[2, 0, 3, 1, 4]] and got.weight.eq(0.2).all()


@IMPLS
def test_a_masked_token_is_not_read_and_picks_nothing(impl):
    logits, mask = normal(6, 8), torch.tensor([True, False, True, True, False, True])
    logits[~mask] = torch.nan
    for more in ({"k": 3}, {"k": 3, "groups": 4, "top_groups": 2}, {"ids": torch.tensor([[1, 9, 2]] * 6)}):
        got = gate(logits, mask=mask, impl=impl, **more)
        assert got.index[~mask].eq(-1).all() and got.weight[~mask].eq(0).all() and got.count[~mask].eq(0).all()
        cut = {**more, **({"ids": more["ids"][mask]} if "ids" in more else {})}
        rest = gate(logits[mask], impl=impl, **cut)
        assert same(Selection(got.index[mask], got.count[mask], got.weight[mask], "expert"), rest)
    got = gate(logits, k=3, mask=torch.zeros(6, dtype=torch.bool), impl=impl)
    assert got.index.eq(-1).all() and got.weight.eq(0).all()


# --- given ids


@IMPLS
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_given_ids_keep_their_order_and_are_weighed(impl, dtype):
    logits = logits_of([0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0])
    ids = torch.tensor([[3, 0, 2], [1, 3, 0]], dtype=dtype)
    got = gate(logits, ids=ids, score="sqrt_softplus", scale=1.5, impl=impl)
    assert torch.equal(got.index, ids.int()) and got.index.dtype == torch.int32 and got.count.tolist() == [3, 3]
    scores = exact([3.0, 0.0, 2.0], "sqrt_softplus")
    assert got.weight[0].tolist() == pytest.approx([1.5 * s / sum(scores) for s in scores], rel=1e-7)
    assert got.weight[1].tolist() == [0.5] * 3
    # A softmax is over all experts, not over the given ones.
    got = gate(logits, ids=ids, score="softmax", renormalise=False, impl=impl)
    assert got.weight[1].tolist() == [0.25] * 3


@IMPLS
def test_wrong_ids_are_dropped_and_the_tail_is_minus_one(impl):
    logits = normal(2, 4)
    for wrong in (-1, 4, -(1 << 31), (1 << 31) - 1, -123456, 114514):
        ids = torch.tensor([[wrong, 2, wrong, 0], [wrong] * 4], dtype=torch.int32)
        got = gate(logits, ids=ids, impl=impl)
        assert got.index.tolist() == [[2, 0, -1, -1], [-1] * 4] and got.count.tolist() == [2, 0]
        clean = gate(logits, ids=torch.tensor([[2, 0]] * 2), impl=impl)
        assert same_bits(got.weight[0, :2], clean.weight[0]) and got.weight[0, 2:].eq(0).all()
        assert got.weight[1].eq(0).all()
    far = torch.tensor([[1 << 40, 1, -(1 << 40), 3]])
    assert gate(logits[:1], ids=far, impl=impl).index.tolist() == [[1, 3, -1, -1]]


def test_checked_looks_at_ids_and_bias():
    logits = normal(2, 4)
    with run.checked():
        gate(logits, ids=torch.tensor([[0, -1], [3, 1]]))
        gate(logits, ids=torch.tensor([[0, 9], [3, 1]]), mask=torch.tensor([False, True]))
        gate(logits, k=2, bias=torch.tensor([0.0, torch.inf, 0.0, 0.0]))
        with pytest.raises(ValueError, match="ids holds 4; allowed: 0 to 3"):
            gate(logits, ids=torch.tensor([[0, 4], [3, 1]]))
        with pytest.raises(ValueError, match="ids holds -2"):
            gate(logits, ids=torch.tensor([[0, -2], [3, 1]]))
        with pytest.raises(ValueError, match="ids names expert 3 twice"):
            gate(logits, ids=torch.tensor([[0, 1], [3, 3]]))
        with pytest.raises(ValueError, match="bias is NaN for expert 2"):
            gate(logits, k=2, bias=torch.tensor([0.0, 0.0, torch.nan, 0.0]))


# --- costs


def test_cost_by_hand():
    """V3.2, 3 tokens of fp32 logits: 256 sigmoids, 256 biases, 8 group sums, 8 picks renormalised and scaled."""
    cost = catalogue.cost("gate")(tokens=3, experts=256, picks=8, bias=1, pair_groups=8)
    assert cost.flops == 3 * (256 * 3 + 256 + 8 + 8 * 3)
    assert cost.bytes_min == 3 * 256 * 4 + 256 * 4 + 3 * (8 * 4 + 8 * 4 + 4)
    # A call on V3.2 says the same of itself.
    calls = []
    with run.observe(calls.append):
        gate(normal(3, 256), k=8, bias=torch.zeros(256), groups=8, top_groups=4, scale=2.5)
    assert catalogue.cost("gate")(**calls[0].sizes()) == cost


def test_the_router_is_a_linear_before_the_gate():
    """0.94 GFLOP at T 8192, D 7168, E 8, in bf16; intensity 8.0 counting x alone, 7.98 with weights and logits."""
    router = dense.linear(8192, 7168, 8)
    assert router.flops == 2 * 8192 * 7168 * 8 == 939_524_096
    assert round(router.flops / 1e9, 2) == 0.94
    assert round(router.flops / (2 * 8192 * 7168), 2) == 8.0
    assert round(router.intensity, 2) == 7.98
    # The gate after it is nothing beside it: 8 scores a token, 4 picks.
    mine = catalogue.cost("gate")(tokens=8192, experts=8, picks=4, itemsize=2)
    assert mine.flops == 8192 * (8 * 3 + 4 * 3) and mine.flops < router.flops / 1000
    assert mine.bytes_min == 8192 * (8 * 2 + 4 * 8 + 4) and mine.bytes_min < router.bytes_min / 200
    # V3.2's own router: 256 experts, logits in fp32.
    wide = dense.linear(8192, 7168, 256, out_itemsize=4)
    assert wide.flops == 32 * router.flops and round(wide.intensity, 1) == 232.2


def test_scratch_is_bounded():
    assert run.workspace_bytes("gate", tokens=1 << 20, experts=256, picks=8) <= 8 << 20
    assert run.workspace_bytes("gate", tokens=0, experts=256, picks=8) == 0


# --- refusals

X = torch.zeros(2, 8)
BAD = [
    ({"logits": X.double()}, "logits is torch.float64"),
    ({"logits": X[0]}, r"logits has shape \(8,\)"),
    ({"k": None}, "k is None"),
    ({"k": -1}, "k is -1; allowed: an integer >= 0"),
    ({"k": 9}, "k is 9; allowed: at most 8"),
    ({"k": 5, "groups": 4, "top_groups": 2}, "k is 5; allowed: at most 4, what 2 of 4 groups of 2 experts hold"),
    ({"groups": 3}, "groups is 3 for 8 experts"),
    ({"groups": 16}, "groups is 16 for 8 experts"),
    ({"groups": 0}, "groups is 0"),
    ({"groups": 4, "top_groups": 5}, "top_groups is 5; allowed: 1 to groups = 4"),
    ({"groups": 4, "top_groups": 0}, "top_groups is 0"),
    ({"score": "relu"}, "score is 'relu'; allowed: 'sigmoid', 'softmax', 'sqrt_softplus'"),
    ({"group_score": "mean"}, "group_score is 'mean'"),
    ({"epsilon": "1e-20"}, "epsilon is '1e-20'; allowed: 'add', 'clamp', 'none'"),
    ({"renormalise": None}, "renormalise is None"),
    ({"scale": math.nan}, "scale is nan"),
    ({"scale": "2"}, "scale is '2'"),
    ({"bias": torch.zeros(7)}, r"bias has shape \(7,\)"),
    ({"bias": torch.zeros(8).bfloat16()}, "bias is torch.bfloat16"),
    ({"mask": torch.ones(2)}, "mask is torch.float32"),
    ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask has shape \(3,\)"),
    ({"ids": torch.zeros(2, 3).long()}, r"ids has shape \(2, 3\).*K = 2"),
    ({"ids": torch.zeros(2, 2)}, "ids is torch.float32"),
    ({"ids": torch.zeros(2, 2).long(), "bias": torch.zeros(8)}, "bias is given with ids"),
    ({"ids": torch.zeros(2, 2).long(), "groups": 4}, "groups is given with ids"),
    ({"logits": X.clone().requires_grad_()}, "gate has no backward"),
    ({"out": Selection(torch.zeros(2, 2).int(), torch.zeros(2).int(), None, "expert")}, "out is a Selection"),
    ({"out": Selection(torch.zeros(2, 2).int(), torch.zeros(2).int(), torch.zeros(2, 2), "key")}, "out is a Selection"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    with pytest.raises(ValueError, match=match):
        gate(**{"logits": X, "k": 2, **change})
