"""Laws of topk: the order, what is never picked, what is picked in any case, wrong input."""

import pytest
import torch
from harness import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_oracle import INF, NAN, best, ints, padded, picks

from tilesieve.ops import run
from tilesieve.ops.slots.op import slots
from tilesieve.ops.topk.op import topk
from tilesieve.types import Pages, Rows, Slots

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
DENORMAL = 2.0**-149


# --- the order ---------------------------------------------------------------------------------------------


@IMPLS
@pytest.mark.parametrize(
    ("row", "k", "want"),
    [
        pytest.param([1.0] * 9, 4, [0, 1, 2, 3], id="all_equal"),
        pytest.param([0, 0, 2, 0, 1, 0, 0], 4, [0, 1, 2, 4], id="relu_plateau"),
        pytest.param([-0.0, 0.0, -0.0, 0.0], 2, [0, 1], id="minus_zero_equals_zero"),
        pytest.param([0.0, -0.0, DENORMAL, -DENORMAL], 2, [0, 2], id="denormals_are_not_zero"),
        pytest.param([-DENORMAL, -0.0, 0.0], 2, [1, 2], id="minus_denormal_is_below_zero"),
        pytest.param([2 * DENORMAL, DENORMAL, 3 * DENORMAL], 2, [0, 2], id="denormals_in_order"),
        pytest.param([1.0, INF, 3e38, INF, INF], 2, [1, 3], id="inf_ties"),
        pytest.param([1.0, INF, 3e38, INF], 3, [1, 2, 3], id="inf_first"),
        pytest.param([5.0, NAN, 4.0, -NAN, 3.0], 2, [0, 2], id="nan_is_never_picked"),
        pytest.param([NAN, -INF, NAN, 1.0, -INF], 4, [3], id="k_above_valid"),
        pytest.param([NAN, 2.0, -INF, 1.0], 2, [1, 3], id="k_is_valid"),
        pytest.param([NAN, -INF, -NAN], 2, [], id="nothing_valid"),
        pytest.param([3.0, 1.0, 2.0], 3, [0, 1, 2], id="k_is_L"),
        pytest.param([3.0, 1.0, -INF], 7, [0, 1], id="k_above_L"),
        pytest.param([-3e38, -INF, -3.4028235e38], 2, [0, 2], id="least_finite_is_legal"),
        pytest.param([-7e4] * 40, 3, [0, 1, 2], id="far_below_fp16"),
    ],
)
def test_order_by_hand(row, k, want, impl):
    assert best([float(x) for x in row], k) == want
    assert picks(row, impl, k=k) == want


@IMPLS
def test_values_one_ulp_apart(impl):
    """40 values that differ in the last bits only, below and above 1 and around -1, in a mixed order."""
    for middle in (1.0, -1.0, 2.0**-126, 65504.0):
        bits = torch.tensor(middle).view(torch.int32) + torch.arange(-20, 20, dtype=torch.int32)
        row = bits.view(torch.float32)[torch.randperm(40)]
        for k in (1, 7, 20, 39):
            assert picks(row, impl, k=k) == best(row.tolist(), k)


SPECIAL = [0.0, -0.0, 1.0, 1.0000001, -1.0, INF, -INF, NAN, DENORMAL, -DENORMAL, 3e38, -3e38]


@IMPLS
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_few_distinct_values_under_every_option(data, impl):
    values = data.draw(st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4))
    width = data.draw(st.integers(0, 30))
    rows = data.draw(st.integers(1, 4))
    scores = [[data.draw(st.sampled_from(values)) for _ in range(width)] for _ in range(rows)]
    k = data.draw(st.integers(1, 33))
    first = data.draw(st.integers(0, min(k, 5)))
    last = data.draw(st.integers(0, min(k - first, 5)))
    border = st.integers(-2, width + 2)
    start = [data.draw(border) for _ in range(rows)]
    end = [data.draw(border) for _ in range(rows)]
    got = topk(torch.tensor(scores, dtype=torch.float32).view(rows, width), k=k, start=ints(*start), end=ints(*end),
               first=first, last=last, impl=impl)  # fmt: skip
    want = [best(s, k, a, b, first, last) for s, a, b in zip(scores, start, end, strict=True)]
    assert got.index.tolist() == [padded(w, k) for w in want]
    assert got.count.tolist() == [len(w) for w in want]


@IMPLS
def test_a_long_row_of_zeros_with_some_better(impl):
    """The plateau reaches past k: what is better, then the lowest zeros, in any replay."""
    row = torch.zeros(5000)
    row[torch.arange(3, 5000, 50)] = torch.rand(100) + 1
    row[:2] = -1
    got = picks(row, impl, k=256)
    assert got == best(row.tolist(), 256)
    assert all(picks(row, impl, k=256) == got for _ in range(5))


@IMPLS
def test_a_short_row_beside_a_long_one(impl):
    scores = torch.randn(2, 131072 if impl == "cpu" else 4096)
    got = topk(scores, k=2048, end=ints(scores.shape[1], 10), impl=impl)
    assert got.index[1].tolist() == padded(range(10), 2048)
    assert got.count.tolist() == [2048, 10]
    assert sorted(scores[0].topk(2048).indices.tolist()) == got.index[0].tolist()


# --- the range, the forced ---------------------------------------------------------------------------------


@IMPLS
def test_what_lies_outside_the_range_is_not_seen(impl):
    start, end = ints(0, 5, 17, 60, 9), ints(70, 66, 18, 60, 3)
    for heads, more in ((1, {}), (3, {"share": "layer"}), (3, {"share": "layer", "reduce": "sum"}), (2, {})):
        clean = torch.randn(5, heads, 70)
        inside = (torch.arange(70) >= start[:, None, None]) & (torch.arange(70) < end[:, None, None])
        want = topk(clean, k=9, start=start, end=end, impl=impl, **more)
        for garbage in (NAN, INF, 3e38, -INF):
            dirty = torch.where(inside, clean, garbage)
            got = topk(dirty, k=9, start=start, end=end, impl=impl, **more)
            assert same_bits(got.index, want.index)
        assert want.count.view(5, -1).amax(1).tolist() == [9, 9, 1, 0, 0]
        assert bool(((want.index == -1) | (want.index >= start.view(-1, *[1] * (want.index.dim() - 1)))).all())


@IMPLS
def test_forced_picks_count_inside_k_and_outrank_infinity(impl):
    row = [-INF, NAN, INF, 5.0, INF, 1.0, NAN, -INF]
    assert picks(row, impl, k=4, first=2, last=2) == [0, 1, 6, 7]
    assert picks(row, impl, k=5, first=2, last=2) == [0, 1, 2, 6, 7]
    assert picks(row, impl, k=3, first=1, last=1) == [0, 2, 7]
    # Overlapping ones count once, and none leaves the range.
    assert picks(row, impl, k=8, first=5, last=3, start=ints(2), end=ints(6)) == [2, 3, 4, 5]
    assert picks(row, impl, k=4, first=2, last=2, start=ints(3), end=ints(6)) == [3, 4, 5]
    assert picks(row, impl, k=2, first=1, last=1, start=ints(6), end=ints(7)) == [6]
    assert picks(row, impl, k=2, first=1, last=1, start=ints(3), end=ints(3)) == []


@IMPLS
def test_forced_picks_of_a_mass(impl):
    scores = torch.full((1, 3, 90), -INF)
    scores[:, :, 40] = 1
    scores[:, 1, 2] = NAN
    assert picks(scores, impl, k=6, share="layer", first=3, last=2) == [[0, 1, 2, 40, 88, 89]]
    assert picks(scores, impl, k=95, share="layer", first=3, last=2) == [[0, 1, 2, 40, 88, 89]]


# --- pages -------------------------------------------------------------------------------------------------


@IMPLS
def test_with_pages_the_sequence_limits_the_range_and_slots_follow(impl):
    pages = Pages(torch.tensor([[4, 0, 2], [1, 3, 5]], dtype=torch.int32), ints(10, 7), 4, 12)
    rows = Rows(ints(0, 1, 0, -1, 2, 1), ints(11, 11, 3, 5, 5, -1))
    scores = torch.arange(12.0).expand(6, 2, 12)
    got, places = topk(scores, k=3, share="layer", space="position", pages=pages, rows=rows, impl=impl)
    assert got.space == "position"
    # Length 10, length 7, the row's own position, no sequence, no such sequence, a negative position.
    assert got.index.tolist() == [[7, 8, 9], [4, 5, 6], [1, 2, 3], [-1] * 3, [-1] * 3, [-1] * 3]
    assert places.slot.tolist() == [[3, 8, 9], [12, 13, 14], [17, 18, 19], [-1] * 3, [-1] * 3, [-1] * 3]
    assert places.count.tolist() == got.count.tolist() == [3, 3, 3, 0, 0, 0]
    end = topk(scores, k=3, share="layer", space="position", pages=pages, rows=rows, end=ints(*[5] * 6), impl=impl)
    assert end[0].index[:3].tolist() == [[2, 3, 4], [2, 3, 4], [1, 2, 3]]


@IMPLS
def test_slots_are_those_of_the_slots_operator(impl):
    table = torch.randperm(40).int().view(4, 10)
    table[2, 3] = -1
    pages, rows = Pages(table, ints(33, 40, 50, 0), 4, 40), Rows(ints(0, 1, 2, 3, 1), ints(39, 20, 39, 3, 39))
    got, places = topk(torch.randn(5, 3, 60), k=9, space="position", pages=pages, rows=rows, first=1, impl=impl)
    want = slots(got, pages, rows)
    assert same_bits(places.slot, want.slot) and same_bits(places.count, want.count)
    assert places.slot.shape == (5, 3, 9)


# --- wrong input -------------------------------------------------------------------------------------------


def test_wrong_input_is_named():
    scores = torch.randn(2, 6, 10)
    pages, rows = Pages(ints(0).view(1, 1), ints(4), 4, 4), Rows(ints(0, 0), ints(3, 3))
    for message, more in {
        "k is 0; allowed: an integer >= 1": {"k": 0},
        "first is -1": {"k": 3, "first": -1},
        r"first \+ last is 2 \+ 2; allowed: at most k = 3": {"k": 3, "first": 2, "last": 2},
        "local_k is 0": {"k": 3, "local_k": 0},
        "block is 0": {"k": 3, "block": 0},
        "share is 'head'": {"k": 3, "share": "head"},
        "reduce is 'mean'": {"k": 3, "reduce": "mean"},
        "space is 'expert'; allowed: 'key', 'position', 'block'": {"k": 3, "space": "expert"},
        "groups is None": {"k": 3, "share": "kv_head"},
        "groups is 4 for 6 heads": {"k": 3, "share": "kv_head", "groups": 4},
        "groups is 0": {"k": 3, "share": "kv_head", "groups": 0},
        r"start has shape \(3,\)": {"k": 3, "start": ints(0, 0, 0)},
        "end is torch.int64": {"k": 3, "end": torch.tensor([1, 2])},
        "pages without rows": {"k": 3, "space": "position", "pages": pages},
        "rows without pages": {"k": 3, "rows": rows},
        "space is 'key' with pages; allowed: 'position'": {"k": 3, "pages": pages, "rows": rows},
    }.items():
        with pytest.raises(ValueError, match=message):
            topk(scores, **more)
    with pytest.raises(ValueError, match="scores is torch.float16"):
        topk(scores.half(), k=3)
    with pytest.raises(ValueError, match=r"scores has shape \(10,\)"):
        topk(scores[0, 0], k=3)
    with pytest.raises(ValueError, match="requires grad"):
        topk(scores.clone().requires_grad_(), k=3)
    selection = topk(scores, k=3)
    with pytest.raises(ValueError, match="out: index is"):
        topk(scores, k=4, out=selection)
    with pytest.raises(ValueError, match="out: index is"):
        topk(scores, k=3, share="layer", out=selection)
    places = Slots(selection.index.long(), selection.count)
    with pytest.raises(ValueError, match="out is a pair"):
        topk(scores, k=3, out=(selection, places))
    with pytest.raises(ValueError, match="out is a Selection"):
        topk(scores, k=3, space="position", pages=pages, rows=rows, out=selection)


def test_checked_looks_inside():
    scores = torch.randn(2, 10)
    pages, rows = Pages(ints(0, -1).view(1, 2), ints(4), 4, 4), Rows(ints(0, -1), ints(3, 3))
    paged = {"space": "position", "pages": pages, "rows": rows}
    with run.checked():
        topk(scores, k=3, start=ints(0, 10), end=ints(0, 10), space="position")
        topk(scores, k=3, **paged)
        for message, more in {
            "start is -1": {"start": ints(-1, 0)},
            "end is 11": {"end": ints(11, 0)},
            "start is 4 and end 3 in row 1": {"start": ints(0, 4), "end": ints(3, 3)},
            "start is 2 and end -1": {"start": ints(2, 2), "end": ints(-1, -1)},
            "rows.seq names 1": {**paged, "rows": Rows(ints(0, 1), ints(0, 0))},
            "pages.length": {**paged, "pages": Pages(pages.table, ints(9), 4, 9)},
            "pages.table holds page -1": {**paged, "pages": Pages(pages.table, ints(5), 4, 5)},
        }.items():
            with pytest.raises(ValueError, match=message):
                topk(scores, k=3, **more)
