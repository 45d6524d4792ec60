"""DeepSeek-V3.2's routing, worked by hand and against its published rule, and its relatives."""

import pytest
import torch

from tilesieve.ops.gate.op import gate

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
V32 = {"k": 8, "groups": 8, "top_groups": 4, "scale": 2.5}


def logits_of(scores):
    """Logits whose sigmoids are these scores."""
    p = torch.tensor(scores, dtype=torch.float64)
    return (p / (1 - p)).log().float()


# Four groups of four. Sigmoids of one token, and the bias of each expert.
SIGMOIDS = [[0.9, 0.1, 0.1, 0.1], [0.5, 0.6, 0.2, 0.3], [0.4, 0.4, 0.7, 0.1], [0.2, 0.2, 0.2, 0.8]]
BIAS = [[0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, -0.5], [0.0, -0.1, -0.4, 0.3], [0.0, 0.0, 0.1, -0.3]]
# Biased:   group 0  0.9  0.1  0.1  0.1    two best 1.0
#           group 1  0.6  0.6  0.2 -0.2             1.2   kept
#           group 2  0.4  0.3  0.3  0.4             0.8
#           group 3  0.2  0.2  0.3  0.5             0.8


@IMPLS
def test_one_token_by_hand(impl):
    """Top 2 of 4 groups: 1 (1.2) and 0 (1.0). Their best three: expert 0 at 0.9, then 4 and 5 at 0.6, and 4 of a
    sigmoid of 0.5 and a bias of 0.1 comes first only if the sums tie, so the bias is moved a hair."""
    bias = torch.tensor(BIAS).flatten()
    bias[4] += 0.01
    got = gate(logits_of(SIGMOIDS).view(1, 16), k=3, bias=bias, groups=4, top_groups=2, scale=2.5, impl=impl)
    assert got.index.tolist() == [[0, 4, 5]]
    # Weights: sigmoids without bias, 0.9, 0.5 and 0.6, over their sum 2.0, times 2.5.
    assert got.weight[0].tolist() == pytest.approx([2.5 * 0.9 / 2, 2.5 * 0.5 / 2, 2.5 * 0.6 / 2], rel=1e-6)
    # Without groups the experts of group 2 and 3 may be picked: the fourth is 15 at 0.8 - 0.3 = 0.5.
    free = gate(logits_of(SIGMOIDS).view(1, 16), k=4, bias=bias, impl=impl)
    assert free.index.tolist() == [[0, 4, 5, 15]]
    # With groups it may not, and expert 6 at 0.2 is.
    held = gate(logits_of(SIGMOIDS).view(1, 16), k=4, bias=bias, groups=4, top_groups=2, impl=impl)
    assert held.index.tolist() == [[0, 4, 5, 6]]


@IMPLS
def test_the_best_expert_of_all_can_stand_in_a_group_that_is_dropped(impl):
    """0.9 + 0.1 loses to 0.6 + 0.6 and to 0.55 + 0.5; by its maximum it would win."""
    scores = [[0.9, 0.1], [0.6, 0.6], [0.55, 0.5], [0.3, 0.3]]
    more = {"k": 2, "groups": 4, "top_groups": 2, "impl": impl}
    got = gate(logits_of(scores).view(1, 8), bias=torch.zeros(8), **more)
    assert got.index.tolist() == [[2, 3]]
    assert gate(logits_of(scores).view(1, 8), **more).index.tolist() == [[0, 2]]


@IMPLS
def test_negative_biased_scores_stay_inside_the_kept_groups(impl):
    """Every biased score below 0: a dropped group filled with 0 would win all eight places."""
    logits, bias = torch.zeros(4, 256), torch.full((256,), -3.0)
    bias[32 * 2 : 32 * 6] = -2.5  # groups 2 to 5 are the best four
    got = gate(logits, bias=bias, impl=impl, **V32)
    assert got.index.tolist() == [[64, 65, 66, 67, 68, 69, 70, 71]] * 4
    assert got.weight.eq(2.5 / 8).all()


@IMPLS
def test_tiny_sigmoids_keep_their_ratio_and_the_scale(impl):
    """Logits near -60, which 1 - 1 / (1 + exp(x)) would all make 0. The reference has no epsilon."""
    logits = torch.full((1, 256), -80.0)
    logits[0, :8] = torch.arange(-60.0, -68.0, -1.0)
    got = gate(logits, epsilon="none", bias=torch.zeros(256), impl=impl, **V32)
    assert got.index.tolist() == [list(range(8))]
    want = torch.exp(torch.arange(0.0, -8.0, -1.0, dtype=torch.float64))
    assert torch.allclose(got.weight[0].double(), 2.5 * want / want.sum(), rtol=1e-7)
    # The sum, 1.4e-26, is below the epsilon of the default, which then decides.
    small = gate(logits, bias=torch.zeros(256), impl=impl, **V32)
    assert torch.allclose(small.weight[0].double(), 2.5 * want * torch.exp(torch.tensor(-60.0).double()) / 1e-20,
                          rtol=2e-6)  # fmt: skip


def published(x, bias, groups, top_groups, k, scale, score="sigmoid"):
    """The rule as the model's own inference code states it, with torch.topk (no ties in the data)."""
    scores = x.sigmoid() if score == "sigmoid" else x.softmax(-1)
    original = scores
    if bias is not None:
        scores = scores + bias
    if groups > 1:
        per = scores.view(len(x), groups, -1)
        value = per.amax(-1) if bias is None else per.topk(2, dim=-1)[0].sum(-1)
        chosen = value.topk(top_groups, dim=-1)[1]
        dropped = torch.ones(len(x), groups, dtype=torch.bool).scatter_(1, chosen, False)
        scores = per.masked_fill(dropped[..., None], -torch.inf).flatten(1)
    index = scores.topk(k, dim=-1)[1]
    weight = original.gather(1, index)
    if score == "sigmoid":
        weight = weight / weight.sum(-1, keepdim=True)
    return index, weight * scale


@IMPLS
@pytest.mark.parametrize("seed", range(3))
def test_the_published_rule_on_random_tokens(impl, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(50, 256, generator=generator, dtype=torch.float64)
    bias = torch.randn(256, generator=generator) * 0.1
    for config in (
        (bias, 8, 4, 8, 2.5),  # V3, V3.2
        (bias, 1, 1, 8, 2.5),  # no groups
        (None, 8, 3, 6, 16.0, "softmax"),  # V2: the best of a group, no renormalising
        (None, 1, 1, 6, 1.0, "softmax"),
    ):
        given, groups, top_groups, k, scale, score = (*config, "sigmoid")[:6]
        wide = None if given is None else given.double()
        index, weight = published(x.float().double(), wide, groups, top_groups, k, scale, score)
        got = gate(x.float(), k=k, bias=given, groups=groups, top_groups=top_groups, score=score, epsilon="none",
                   renormalise=score == "sigmoid", scale=scale, impl=impl)  # fmt: skip
        assert torch.equal(got.index.long(), index)
        # One fp32 rounding of an fp64 rule; largest seen 6e-8.
        assert torch.allclose(got.weight.double(), weight, rtol=1e-7, atol=0)


@IMPLS
def test_the_scale_of_v4_and_its_hash_layers(impl):
    """sqrt(softplus), bias for selection, no groups; hash layers take ids from a table of token ids."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(20, 64, generator=generator)
    scores = torch.nn.functional.softplus(x.double(), threshold=1e9).sqrt()
    bias = torch.randn(64, generator=generator)
    got = gate(x, k=6, score="sqrt_softplus", bias=bias, scale=1.5, epsilon="none", impl=impl)
    index = (scores.float() + bias).topk(6)[1]
    weight = scores.gather(1, index)
    assert torch.equal(got.index.long(), index)
    assert torch.allclose(got.weight.double(), 1.5 * weight / weight.sum(-1, keepdim=True), rtol=1e-7, atol=0)
    table = torch.rand(100, 64, generator=generator).argsort(1)[:, :6].int()
    ids = table[torch.randint(0, 100, (20,), generator=generator)]
    hashed = gate(x, ids=ids, score="sqrt_softplus", scale=1.5, epsilon="none", impl=impl)
    weight = scores.gather(1, ids.long())
    assert torch.equal(hashed.index, ids)
    assert torch.allclose(hashed.weight.double(), 1.5 * weight / weight.sum(-1, keepdim=True), rtol=1e-7, atol=0)
