"""Laws of topk where heads share a set: which heads, how they are reduced, what a faulty one does."""

import pytest
import torch
from harness import same_bits
from topk_oracle import INF, NAN, ints, picks

from tilesieve.ops.topk.op import topk

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


@IMPLS
def test_shares_are_what_they_are_named(impl):
    scores = torch.randn(3, 6, 40).round()
    wide = topk(scores, k=5, impl=impl)
    assert wide.index.shape == (3, 6, 5) and wide.count.shape == (3, 6)
    for h in range(6):
        assert same_bits(wide.index[:, h], topk(scores[:, h], k=5, impl=impl).index)
    grouped = topk(scores, k=5, share="kv_head", groups=2, impl=impl)
    assert grouped.index.shape == (3, 2, 5)
    for g in range(2):
        alone = topk(scores[:, 3 * g : 3 * g + 3], k=5, share="layer", impl=impl)
        assert alone.index.shape == (3, 5)
        assert same_bits(grouped.index[:, g], alone.index)
    assert same_bits(topk(scores, k=5, share="kv_head", groups=6, impl=impl).index, wide.index)
    # 2-D scores, and a set of one head, are taken as they are, whatever the reduction.
    for share in ("layer", "kv_head", "q_head"):
        assert same_bits(topk(scores[:, 0], k=5, share=share, impl=impl).index, wide.index[:, 0])
    raw = torch.tensor([[[1.0, INF, NAN, INF, 2.0]]])
    assert picks(raw, impl, k=3, share="layer") == [[1, 3, 4]]


@IMPLS
def test_reductions_by_hand(impl):
    """Column 0: one head's all, another's nothing. Column 1: every head's second. Column 2: loud in a loud head."""
    scores = torch.tensor([[[9.0, 8.0, 0.0], [-50.0, 0.0, -50.0], [100.0, 102.0, 103.0]]])
    # mass: column 0 .73 of head 0; column 1 .27 + 1 + .26; column 2 .70 of head 2.
    assert picks(scores, impl, k=1, share="layer") == [[1]]
    assert picks(scores, impl, k=2, share="layer") == [[0, 1]]
    assert picks(scores, impl, k=1, share="layer", reduce="sum") == [[1]]
    assert picks(scores, impl, k=1, share="layer", reduce="max") == [[2]]
    # Ascending heads: (1e8 + 1) - 1e8 is 0 in fp32, and (1e8 - 1e8) + 1 would be 1.
    order = torch.tensor([[[1e8, 0.5], [1.0, 0.0], [-1e8, 0.0]]])
    assert picks(order, impl, k=1, share="layer", reduce="sum") == [[1]]


@IMPLS
def test_what_a_faulty_head_does_to_its_set(impl):
    def both(head0, head1, k, reduce):
        return picks(torch.tensor([[head0, head1]]), impl, k=k, share="layer", reduce=reduce)[0]

    head = [1.0, 2.0, 0.0, -1.0]
    # NaN or -inf in one head: mass 0 there, the other head decides; in both: never.
    assert both([NAN, NAN, NAN, NAN], head, 1, "mass") == [1]
    assert both([-INF] * 4, head, 1, "mass") == [1]
    assert both([NAN, 0.0, 0.0, -INF], [NAN, 0.0, 0.0, NAN], 3, "mass") == [1, 2]
    assert both([NAN, 5.0, 0.0, NAN], [9.0, -INF, -INF, -INF], 1, "mass") == [0]
    assert both([NAN, 5.0, 0.0, NAN], head, 4, "sum") == [1, 2]
    assert both([-INF, 5.0, 0.0, -INF], head, 4, "sum") == [1, 2]
    assert both([INF, 5.0, 0.0, 0.0], [-INF, 1.0, 0.0, 0.0], 4, "sum") == [1, 2, 3]
    assert both([NAN, 5.0, -INF, NAN], [0.0, -INF, -INF, 7.0], 1, "max") == [3]
    assert both([NAN, 5.0, -INF, NAN], [0.0, -INF, NAN, 7.0], 4, "max") == [0, 1, 3]
    # +inf is the largest finite number: it takes its head's mass, split among equals.
    assert both([INF, 3e38, INF, 0.0], [0.0, 0.0, 0.0, 9.0], 1, "mass") == [3]
    assert both([0.0, INF, 3.4028235e38, 0.0], [0.0, 0.0, 0.0, -9.0], 2, "mass") == [1, 2]


@IMPLS
@pytest.mark.parametrize("width", [20, 300])
def test_a_mass_too_small_for_fp32_is_still_above_none(impl, width):
    """exp underflows to 0 at the columns of -200: they may be picked, in order; those of -inf may not."""
    scores = torch.full((1, 2, width), -200.0)
    scores[..., 10] = 0.0
    scores[..., :3] = -INF
    scores[:, 0, 3] = NAN
    assert picks(scores, impl, k=4, share="layer") == [[3, 4, 5, 10]]
    scores[..., 5:] = -INF
    scores[..., 10] = 0.0
    assert picks(scores, impl, k=8, share="layer") == [[3, 4, 10]]
    assert picks(scores, impl, k=8, share="layer", start=ints(4)) == [[4, 10]]


@pytest.mark.parametrize("width", [5, 15, 16, 17, 64, 200])
def test_a_mass_is_the_same_to_the_bit(width):
    """Near-ties show the last bit of the softmax and of the heads' ascending sum."""
    scores = torch.randn(30, 9, 1) + torch.randn(30, 9, width) * 1e-6
    start, end = torch.randint(0, width // 2 + 1, (30,)).int(), torch.randint(width // 2, width + 1, (30,)).int()
    for more in ({}, {"start": start}, {"end": end}, {"start": start, "end": end}):
        for share in ({"share": "layer"}, {"share": "kv_head", "groups": 3}):
            want = topk(scores, k=width // 3, impl="reference", **share, **more)
            assert same_bits(topk(scores, k=width // 3, impl="cpu", **share, **more).index, want.index)


def test_mass_against_fp64():
    """No column is left out whose mass is above a picked one's, beyond fp32."""
    scores = torch.randn(16, 5, 700) * 4
    start, end = torch.randint(0, 300, (16,)).int(), torch.randint(300, 701, (16,)).int()
    got = topk(scores, k=50, share="layer", start=start, end=end)
    columns = torch.arange(700)
    outside = (columns < start[:, None]) | (columns >= end[:, None])
    mass = torch.softmax(scores.double().masked_fill(outside[:, None], -INF), -1).sum(1)
    for r in range(16):
        chosen = got.index[r, : got.count[r]].long()
        rest = torch.ones(700, dtype=torch.bool)
        rest[chosen] = False
        # 3e-7 of the mass: a softmax and four additions in fp32; largest seen 0 (no near tie among these).
        assert float(mass[r, chosen].min()) >= float(mass[r, rest & ~outside[r]].max()) * (1 - 3e-7)
