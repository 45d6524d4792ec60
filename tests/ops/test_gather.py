"""Laws of gather: rows by hand, zeros for what is not there, and what a run is."""

import pytest
import torch
from attention_inputs import listed, normal, one, slots_of
from harness import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.formats.kv import new_kv, token_views
from tilesieve.ops import catalogue, run
from tilesieve.ops.gather.cost import contiguous_bytes
from tilesieve.ops.gather.op import gather
from tilesieve.ops.gather.runs import contiguous_runs
from tilesieve.types import KVCache, Slots

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


@IMPLS
@pytest.mark.parametrize("format", ["kv_fp32.token", "kv_bf16.head"])
def test_rows_come_in_the_order_listed(impl, format):
    key, value, cache, pages = one(30, 3, 8, 5, format=format, page_size=4)
    index = torch.tensor([[29, 0, 7, 7], [1, 2, 3, 28]])
    got_key, got_value = gather(cache, listed(slots_of(pages, index)), impl=impl)
    assert got_key.shape == (2, 3, 4, 8) and got_value.shape == (2, 3, 4, 5)
    assert same_bits(got_key, key[index].transpose(1, 2).to(cache.key.dtype).contiguous())
    assert same_bits(got_value, value[index].transpose(1, 2).to(cache.key.dtype).contiguous())


@IMPLS
def test_a_list_per_head_takes_that_heads_rows(impl):
    key, _, cache, pages = one(30, 3, 8)
    index = torch.tensor([[[4, 5], [6, 7], [29, 0]]])
    got, _ = gather(cache, listed(slots_of(pages, index)), impl=impl)
    for h in range(3):
        assert same_bits(got[0, h], key[index[0, h], h])
    same = gather(cache, listed(slots_of(pages, index[:, :1].expand(1, 3, 2))), impl=impl)
    shared = gather(cache, listed(slots_of(pages, index[:, 0])), impl=impl)
    assert all(same_bits(a, b) for a, b in zip(same, shared, strict=True))


@IMPLS
@pytest.mark.parametrize("lists", [1, 2])
def test_what_is_not_there_is_zero_and_not_read(impl, lists):
    """-1, past the pool, past the count; slot 0, to which a clamped index would lead, holds NaN."""
    cache = new_kv("kv_fp32.token", 3, 4, 2, 8)
    for pool in (cache.key, cache.value):
        pool.fill_(1.0)
        pool[0, 0] = torch.nan
    slot = torch.tensor([-1, 5, 12, 2**31 - 1, -(2**31), 6, 0, 0]).expand(1, lists, 8)
    for places in (slot, slot.int()):
        for packed in gather(cache, listed(places, [[6] * lists]), impl=impl):
            assert packed.sum(-1)[0].tolist() == [[0, 8, 0, 0, 0, 8, 0, 0]] * 2
    for count in (0, -4):
        assert all(packed.eq(0).all() for packed in gather(cache, listed(slot, [[count] * lists]), impl=impl))


@IMPLS
def test_bits_are_copied(impl):
    """-0, NaN and subnormal numbers as they are."""
    cache = new_kv("kv_bf16.token", 1, 4, 1, 4)
    bits = torch.tensor([-32768, 32705, 1, 32640], dtype=torch.int16)
    cache.key[0, 2, 0] = bits.view(torch.bfloat16)
    assert torch.equal(gather(cache, listed([[2]]), impl=impl)[0].view(torch.int16)[0, 0, 0], bits)


@IMPLS
def test_pages_with_holes_between(impl):
    big = normal(6, 5, 2, 8)
    cache = KVCache(big[::2, :4], big[::2, :4], "kv_fp32.token")
    got, _ = gather(cache, listed([[0, 3, 4, 11]]), impl=impl)
    assert same_bits(got[0, 1], torch.stack([big[0, 0, 1], big[0, 3, 1], big[2, 0, 1], big[4, 3, 1]]))


def test_runs_by_hand():
    slot = torch.tensor([[4, 5, 6, 9, 10, 3], [1, 2, 3, 4, 5, 6], [7, 7, 8, 6, -1, 7], [5, -1, 6, 7, 8, 9]])
    count = torch.tensor([6, 4, 6, 3], dtype=torch.int32)
    got = contiguous_runs(Slots(slot, count))
    assert got.tolist() == [3, 1, 4, 2] and got.dtype == torch.int32
    assert contiguous_runs(Slots(slot, count), page_size=4).tolist() == [3, 2, 5, 2]
    assert contiguous_runs(Slots(slot.view(2, 2, 6), count.view(2, 2))).tolist() == [[3, 1], [4, 2]]
    assert contiguous_runs(listed(torch.empty(2, 0).long())).tolist() == [0, 0]
    assert contiguous_runs(listed([[3, 4]], [0])).tolist() == [0]
    with pytest.raises(ValueError, match="page_size is 0"):
        contiguous_runs(listed([[3, 4]]), page_size=0)
    with pytest.raises(ValueError, match=r"count has shape \(2,\); slot \(1, 2\) needs \(1,\)"):
        contiguous_runs(Slots(torch.tensor([[3, 4]]), torch.tensor([1, 1])))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 40), unique=True, max_size=30), st.sampled_from([None, 1, 4, 16]))
def test_sorting_never_increases_runs(slots, page_size):
    slot = torch.tensor(slots, dtype=torch.int64)[None]
    shuffled = contiguous_runs(listed(slot), page_size=page_size)
    ordered = contiguous_runs(listed(slot.sort(-1).values), page_size=page_size)
    # The fewest possible: one for each slot whose predecessor is absent, or on another page.
    starts = sum(s - 1 not in slots or (page_size is not None and s % page_size == 0) for s in slots)
    assert ordered.item() == starts <= shuffled.item() <= len(slots)


def test_contiguous_bytes_by_hand():
    """12 slots in 3 runs, bf16 rows of 8: 16 bytes for a head, 48 for the 3 heads of a slot."""
    shape = {"heads": 3, "width": 8, "itemsize": 2, "picked": 12, "runs": 3}
    assert contiguous_bytes(layout="token", **shape) == 4 * 48
    assert contiguous_bytes(layout="token", lists=3, **shape) == 16  # heads' rows lie between
    assert contiguous_bytes(layout="head", **shape) == 4 * 16
    assert contiguous_bytes(layout="head", lists=3, **shape) == 4 * 16
    assert contiguous_bytes(layout="head", **{**shape, "picked": 0, "runs": 0}) == 0
    with pytest.raises(ValueError, match="layout is 'page'"):
        contiguous_bytes(layout="page", **shape)


def test_contiguous_copies_really_are():
    """Walk the addresses: adjacent slots of a run lie side by side where contiguous_bytes says so."""
    for layout in ("token", "head"):
        cache = new_kv(f"kv_fp32.{layout}", 2, 4, 3, 8)
        key, _ = token_views(cache)

        def start(slot, head, key=key):
            return key[slot // 4, slot % 4, head].storage_offset()

        step = start(2, 1) - start(1, 1)  # one page; runs end at pages in a head-major cache
        assert step == (3 * 8 if layout == "token" else 8)
        assert (start(4, 1) - start(3, 1) == step) == (layout == "token")


def test_cost_by_hand():
    """2 rows of 5 picks for 3 heads, one list each: 8 valid entries, 6 distinct slots."""
    shape = {"rows": 2, "picks": 5, "heads": 3, "width": 6, "value_width": 2, "picked": 8, "distinct": 3 * 6}
    cost = catalogue.cost("gather")(**shape)
    index, written = 2 * (5 * 8 + 4), 2 * 3 * 5 * 8 * 2
    assert cost.flops == 0
    assert cost.bytes_min == 18 * 8 * 2 + written + index
    assert cost.bytes_moved == 8 * 3 * 8 * 2 + written + index
    # Slot by slot: keys 36 bytes in 2 sectors, values 12 in 1. In 2 runs of 4: 144 in 5, 48 in 2.
    assert cost.bytes_padded == 8 * 3 * 32 + written + index
    assert catalogue.cost("gather")(**shape, runs=2).bytes_padded == 2 * 7 * 32 + written + index


BAD = [
    ({"slots": listed(torch.zeros(2, 3, 5, dtype=torch.int64))}, r"slots.slot has shape \(2, 3, 5\).*G = 2"),
    ({"slots": listed(torch.zeros(2, 5))}, "slots.slot is torch.float32"),
    ({"slots": Slots(torch.zeros(2, 5).int(), torch.zeros(3).int())}, r"slots.count has shape \(3,\)"),
    ({"out": (torch.empty(1, 2, 1, 8), torch.empty(1, 2, 2, 8))}, "out: packed_value"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    with pytest.raises(ValueError, match=match):
        gather(**{"cache": one(9)[2], "slots": listed([[1]]), **change})


def test_checked_names_what_is_wrong():
    cache = one(9, 2, 8)[2]
    with run.checked():
        gather(cache, listed([[-1, 3, 3]]))
        with pytest.raises(ValueError, match="slots.slot names 99; the cache has 20 slots"):
            gather(cache, listed([[1, 99]]))
        with pytest.raises(ValueError, match=r"slots.count is 3 to 3; allowed: 0 to 2"):
            gather(cache, listed([[1, 2]], [3]))
