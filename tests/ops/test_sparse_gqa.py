"""Laws of sparse_gqa: what is listed counts, as often as it is listed, and nothing else is read."""

from dataclasses import replace

import pytest
import torch
from attention_inputs import at, exact, listed, near, normal, one, paged, slots_of
from harness import same_bits
from torch.utils.flop_counter import FlopCounterMode

from tilesieve.ops import catalogue, run
from tilesieve.ops.gqa_decode.op import gqa_decode
from tilesieve.ops.merge.op import merge
from tilesieve.ops.sparse_gqa import reference
from tilesieve.ops.sparse_gqa.cpu import sparse_gqa as cpu_form
from tilesieve.ops.sparse_gqa.op import sparse_gqa
from tilesieve.types import Partial

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def same(a, b):
    return same_bits(a.out, b.out) and same_bits(a.lse, b.lse)


def picked(rows, lists, length, k, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, lists, length, generator=generator).argsort(-1)[..., :k].sort(-1).values


@IMPLS
@pytest.mark.parametrize("lists", [1, 3, 9])
@pytest.mark.parametrize("k", [1, 40, 513])
def test_values(impl, lists, k):
    """Every form of list against an oracle, over more than one block of keys too."""
    key, value, cache, pages = one(600, 3, 8, 5, page_size=16)
    q, sink = normal(2, 9, 8, seed=5), normal(9, seed=6)
    index = picked(2, lists, 600, k)
    got = sparse_gqa(q, cache, listed(slots_of(pages, index)), scale=0.4, sink=sink, impl=impl)
    for r in range(2):
        for h in range(9):
            mine, g = index[r, h * lists // 9], slice(h // 3, h // 3 + 1)
            out, lse = exact(q[r, h : h + 1], key[mine, g], value[mine, g], 0.4, sink[h : h + 1])
            assert near(Partial(got.out[r, h : h + 1], got.lse[r, h : h + 1]), out, lse)


@IMPLS
def test_everything_listed_is_dense_attention(impl):
    _, _, cache, pages = one(700, 3, 8, page_size=16)
    q = normal(1, 9, 8, seed=2)
    dense = gqa_decode(q, cache, pages, at([0], [699]), impl=impl)
    whole = torch.arange(700)[None]
    got = sparse_gqa(q, cache, listed(slots_of(pages, whole)), impl=impl)
    assert near(got, dense.out.double(), dense.lse.double(), 1e-6)
    shuffled = whole[:, torch.randperm(700)]
    assert near(sparse_gqa(q, cache, listed(slots_of(pages, shuffled)), impl=impl), got.out.double(), got.lse.double())


@IMPLS
def test_one_list_for_all_is_the_same_list_for_each(impl):
    _, _, cache, pages = one(60, 3, 8)
    q = normal(2, 9, 8)
    slot = slots_of(pages, picked(2, 1, 60, 20))
    want = sparse_gqa(q, cache, listed(slot[:, 0]), impl=impl)
    assert same(sparse_gqa(q, cache, listed(slot.expand(2, 3, 20)), impl=impl), want)
    each = sparse_gqa(q, cache, listed(slot.expand(2, 9, 20)), impl=impl)
    assert near(each, want.out.double(), want.lse.double(), 1e-6)


@IMPLS
@pytest.mark.parametrize("lists", [1, 2, 4])
def test_invalid_entries_are_skipped_where_they_stand(impl, lists):
    """-1, past the pool (positive and too large), past the count; NaN wherever they could lead."""
    _, _, cache, pages = one(20, 2, 8)
    free = [s for s in range(28) if s not in slots_of(pages, torch.arange(20)).tolist()]
    assert torch.isnan(cache.key[free[0] // 4, free[0] % 4]).all()
    a, b, c = slots_of(pages, [3, 11, 19]).tolist()
    slot = torch.tensor([-1, a, 28, -(2**31), b, 2**31 - 1, c, free[0]]).expand(1, lists, 8)
    q = normal(1, 4, 8, seed=1)
    got = sparse_gqa(q, cache, listed(slot, [[7] * lists]), impl=impl)
    want = sparse_gqa(q, cache, listed(torch.tensor([a, b, c]).expand(1, lists, 3)), impl=impl)
    assert near(got, want.out.double(), want.lse.double(), 1e-6)
    assert same(sparse_gqa(q, cache, listed(slot.int(), [[7] * lists]), impl=impl), got)
    shown = sparse_gqa(q, cache, listed(slot, [[8] * lists]), impl=impl)
    assert shown.out.isnan().all()  # the last entry is a slot like any other once it counts


@IMPLS
def test_a_slot_listed_twice_counts_twice(impl):
    key, value, cache, pages = one(9, 1, 8)
    q = normal(1, 1, 8, seed=1)
    got = sparse_gqa(q, cache, listed(slots_of(pages, [[2, 5, 2]])), scale=1.0, impl=impl)
    assert near(Partial(got.out[0], got.lse[0]), *exact(q[0], key[[2, 2, 5]], value[[2, 2, 5]], 1.0))
    with run.checked(), pytest.raises(ValueError, match="slots.slot names a place twice"):
        sparse_gqa(q, cache, listed(slots_of(pages, [[2, 5, 2]])), impl=impl)
    with run.checked():  # skipped entries are no places
        sparse_gqa(q, cache, listed([[-1, 3, -1, 3]], [3]), impl=impl)


@IMPLS
def test_lists_with_nothing(impl):
    _, _, cache, pages = one(9, 2, 8)
    slot = slots_of(pages, [[[1, 2], [3, 4]], [[-1, -1], [5, -1]], [[1, 2], [3, 4]]])
    got = sparse_gqa(normal(3, 4, 8), cache, listed(slot, [[2, 0], [2, 2], [0, -3]]), sink=torch.zeros(4), impl=impl)
    dead = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    assert torch.equal(got.lse == -torch.inf, dead)
    assert got.out[dead].eq(0).all() and got.out[~dead].ne(0).all()


@IMPLS
@pytest.mark.parametrize("lists", [1, 3, 9])
def test_split_law(impl, lists):
    """Attention over two parts of a selection, merged, is attention over the selection."""
    _, _, cache, pages = one(700, 3, 8, page_size=16)
    q, sink = normal(2, 9, 8, seed=7), normal(9, seed=8)
    slot = slots_of(pages, picked(2, lists, 700, 600))
    whole = sparse_gqa(q, cache, listed(slot), sink=sink, impl=impl)
    for cut in (1, 300, 599, 600):
        parts = [sparse_gqa(q, cache, listed(s), impl=impl) for s in (slot[..., :cut], slot[..., cut:])]
        assert near(merge(parts, sink=sink, impl=impl), whole.out.double(), whole.lse.double(), 2e-6)


@IMPLS
def test_layouts_give_the_same_bits(impl):
    _, _, cache, pages = one(600, 2, 8)
    _, _, head, there = one(600, 2, 8, format="kv_fp32.head", page_size=5, seed=0)
    index = picked(2, 2, 600, 520)
    q = normal(2, 4, 8)
    assert same(sparse_gqa(q, cache, listed(slots_of(pages, index)), impl=impl),
                sparse_gqa(q, head, listed(slots_of(there, index)), impl=impl))  # fmt: skip


@IMPLS
def test_a_nan_that_is_listed_shows_in_its_row_and_head_only(impl):
    _, _, cache, pages = one(20, 2, 8)
    q = normal(2, 4, 8, seed=2)
    places = listed(slots_of(pages, [[3, 7], [4, 9]]))
    clean = sparse_gqa(q, cache, places, impl=impl)
    slot = int(slots_of(pages, [7])[0])
    cache.value[slot // 4, slot % 4, 1, 5] = torch.nan
    got = sparse_gqa(q, cache, places, impl=impl)
    assert got.out[0, 2:, 5].isnan().all() and int(got.out.isnan().sum()) == 2
    assert same_bits(got.out[1], clean.out[1]) and got.lse.isfinite().all()


@IMPLS
def test_far_scores(impl):
    """Scores far below and far above any sentinel: the row's own maximum is taken off."""
    for base in (-6e4, 6e4):
        key = torch.tensor([base, base + 1.0, base]).view(3, 1, 1)
        cache = replace(one(4, 1, 1)[2], key=key.view(1, 3, 1, 1), value=torch.eye(3).view(1, 3, 1, 3))
        got = sparse_gqa(torch.ones(1, 1, 1), cache, listed([[0, 1]]), scale=1.0, impl=impl)
        assert torch.allclose(got.out[0, 0], torch.tensor([1, 2.7182817, 0]) / 3.7182817, atol=1e-6)


@IMPLS
def test_products_beyond_fp32(impl):
    """Scores of 1e40 are no number in fp32; softmax of equal ones is."""
    cache, pages = paged([torch.full((2, 1, 2), 1e20)], [torch.tensor([1.0, 3.0]).view(2, 1, 1)])
    slots = listed(slots_of(pages, [[0, 1]]))
    got = sparse_gqa(torch.full((1, 1, 2), 1e20), cache, slots, scale=1.0, impl=impl)
    assert got.out.item() == 2.0


def test_the_cpu_form_asks_the_reference_only_where_it_must(monkeypatch):
    """Skipped entries lead nowhere, even if slot 0 holds NaN."""
    cache = one(20, 2, 8)[2]
    cache.key[0, 0], cache.value[0, 0] = torch.nan, torch.nan
    cache.key[1:], cache.value[1:] = 1.0, 1.0
    monkeypatch.setattr(reference, "sparse_gqa", lambda *a: pytest.fail("the reference ran"))
    for slots in (listed([[5, -1, 99, 7]]), listed([[[5, -1], [-1, -1]]]), listed([[5, 0]], [1]), listed([[-1]])):
        sparse_gqa(normal(1, 4, 8), cache, slots, impl="cpu")


def test_work_grows_with_the_lists_not_with_the_pool():
    def flops(length, k):
        _, _, cache, pages = one(length, 2, 8)
        slot, out = slots_of(pages, picked(1, 1, length, k)), (torch.empty(1, 4, 8), torch.empty(1, 4))
        count = torch.full((1, 1), k).int()
        with FlopCounterMode(display=False) as counter:
            cpu_form(normal(1, 4, 8), cache.key, cache.value, slot, count, 1.0, None, out=out)
        return counter.get_total_flops()

    assert flops(4000, 500) == flops(600, 500) == flops(600, 512)
    assert flops(4000, 1500) == 3 * flops(4000, 500)


def test_cost_by_hand():
    """2 rows of 6 heads over 3 kv heads, one list per kv head: 7 entries valid of which 6 distinct."""
    cost = catalogue.cost("sparse_gqa")(rows=2, heads=6, kv_heads=3, width=8, picks=5, lists=3, visited=2 * 7,
                                        distinct=6, itemsize=4, q_itemsize=4, slot_itemsize=4, sink=1)  # fmt: skip
    assert cost.flops == 7 * 2 * 2 * (8 + 8)
    assert cost.bytes_min == 6 * 16 * 4 + 2 * 6 * 8 * 4 + 2 * 3 * (5 * 4 + 4) + 6 * 4 + 2 * 6 * (8 + 1) * 4


BAD = [
    ({"slots": listed(torch.zeros(2, 3, 5, dtype=torch.int64))}, r"slots.slot has shape \(2, 3, 5\).*H = 4"),
    ({"slots": listed(torch.zeros(1, 5, dtype=torch.int64))}, r"slots.slot has shape \(1, 5\).*R = 2"),
    ({"slots": listed(torch.zeros(2, 5))}, "slots.slot is torch.float32"),
    ({"slots": replace(listed([[1], [2]]), count=torch.ones(2, 1).int())}, r"slots.count has shape \(2, 1\)"),
    ({"q": normal(2, 3, 8)}, "q has 3 heads"),
    ({"sink": torch.zeros(2)}, r"sink has shape \(2,\)"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    cache = one(9, 2, 8)[2]
    with pytest.raises(ValueError, match=match):
        sparse_gqa(**{"q": normal(2, 4, 8), "cache": cache, "slots": listed([[1], [2]]), **change})


def test_checked_names_what_is_wrong():
    cache = one(9, 2, 8)[2]
    with run.checked():
        with pytest.raises(ValueError, match="slots.slot names 99; the cache has 20 slots"):
            sparse_gqa(normal(1, 4, 8), cache, listed([[1, 99]]))
        for count in (3, -1):
            with pytest.raises(ValueError, match=r"slots.count is .*allowed: 0 to 2"):
                sparse_gqa(normal(1, 4, 8), cache, listed([[1, 2]], [count]))
