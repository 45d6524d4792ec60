"""Laws of sparse_gqa_prefill: the selection is a mask, and a row's bits are its own."""

from dataclasses import replace

import pytest
import torch
from attention_inputs import at, chosen, exact, ints, listed, near, normal, one, paged, slots_of
from harness import same_bits

from tilesieve.ops import catalogue, run
from tilesieve.ops.gqa_decode.op import gqa_decode
from tilesieve.ops.merge.op import merge
from tilesieve.ops.sparse_gqa.op import sparse_gqa
from tilesieve.ops.sparse_gqa_prefill import cpu
from tilesieve.ops.sparse_gqa_prefill.op import sparse_gqa_prefill
from tilesieve.types import Partial, Rows, Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def same(a, b):
    return same_bits(a.out, b.out) and same_bits(a.lse, b.lse)


def random_selection(position, lists, k, seed=3):
    """k random positions that each row sees, ascending, -1 behind them."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.rand(len(position), lists, max(position) + 1, generator=generator)
    seen = torch.arange(max(position) + 1) <= torch.tensor(position)[:, None, None]
    order = torch.where(seen, score, torch.inf).argsort(-1)[..., :k]
    count = torch.minimum(torch.tensor(position) + 1, torch.tensor(k))[:, None].expand(-1, lists)
    valid = torch.arange(order.shape[-1]) < count[..., None]
    order = torch.where(valid, order, 1 << 30).sort(-1).values
    return chosen(torch.where(valid, order, -1), count)


def rows_of(partial, rows):
    return Partial(partial.out[rows], partial.lse[rows])


@IMPLS
@pytest.mark.parametrize("lists", [1, 3, 9])
def test_values(impl, lists):
    key, value, cache, pages = one(600, 3, 8, 5, page_size=16)
    position = [599, 0, 37, 511, 512, 598]
    q, sink = normal(6, 9, 8, seed=5), normal(9, seed=6)
    selection = random_selection(position, lists, 40)
    got = sparse_gqa_prefill(q, cache, pages, at([0] * 6, position), selection, scale=0.4, sink=sink, impl=impl)
    for r in range(6):
        for h in range(9):
            mine, g = selection.index[r].view(lists, -1)[h * lists // 9], slice(h // 3, h // 3 + 1)
            mine = mine[mine >= 0].long()
            out, lse = exact(q[r, h : h + 1], key[mine, g], value[mine, g], 0.4, sink[h : h + 1])
            assert near(Partial(got.out[r, h : h + 1], got.lse[r, h : h + 1]), out, lse)


@IMPLS
@pytest.mark.parametrize("lists", [1, 2, 4])
def test_equals_sparse_gqa_over_the_slots(impl, lists):
    _, _, cache, pages = one(90, 2, 8)
    position = list(range(60, 90))
    q, selection = normal(30, 4, 8, seed=2), random_selection(position, lists, 17)
    want = sparse_gqa(q, cache, listed(slots_of(pages, selection.index)), impl=impl)
    got = sparse_gqa_prefill(q, cache, pages, at([0] * 30, position), selection, impl=impl)
    assert near(got, want.out.double(), want.lse.double(), 1e-6)


@IMPLS
def test_a_selection_of_everything_is_dense_attention(impl):
    """k at or beyond the context, also where k exceeds what a row sees."""
    _, _, cache, pages = one(700, 3, 8, page_size=16)
    position = [0, 5, 511, 512, 699]
    q, rows = normal(5, 9, 8, seed=2), at([0] * 5, position)
    dense = gqa_decode(q, cache, pages, rows, impl=impl)
    everything = chosen(torch.arange(700).expand(5, 700))
    for selection in (everything, random_selection(position, 1, 900), random_selection(position, 3, 900)):
        got = sparse_gqa_prefill(q, cache, pages, rows, selection, impl=impl)
        assert near(got, dense.out.double(), dense.lse.double(), 1e-6)


@IMPLS
def test_what_counts(impl):
    """Only 0 <= p <= position and p < length, within the count; once, however often listed."""
    key, value, cache, pages = one(12, 2, 8)
    q = normal(1, 4, 8, seed=1)
    index = [[-1, 4, 7, 4, -(2**31), 8, 9, 2**31 - 1, 12, 2, 4, 0]]  # the row stands at 7; 0 is past the count
    got = sparse_gqa_prefill(q, cache, pages, at([0], [7]), chosen(index, [11]), impl=impl)
    assert near(Partial(got.out[0], got.lse[0]), *exact(q[0], key[[2, 4, 7]], value[[2, 4, 7]], 8**-0.5))
    tidy = sparse_gqa_prefill(q, cache, pages, at([0], [7]), chosen([[2, 4, 7]]), impl=impl)
    assert same(got, tidy)  # a mask knows neither order nor repetition
    # In sparse_gqa the position listed three times would weigh three times.
    thrice = sparse_gqa(q, cache, listed(slots_of(pages, [[2, 4, 7, 4, 4]])), impl=impl)
    assert not torch.allclose(thrice.lse, got.lse, atol=1e-3)
    past = sparse_gqa_prefill(q, cache, pages, at([0], [2**31 - 1]), chosen([[11, 12, 13]]), impl=impl)
    assert near(Partial(past.out[0], past.lse[0]), *exact(q[0], key[[11]], value[[11]], 8**-0.5))


@IMPLS
def test_rows_that_see_nothing(impl):
    """One row without an allowed key; padding; every empty selection. Beside rows that see something."""
    keys = [normal(6, 2, 8), normal(0, 2, 8)]
    cache, pages = paged(keys, keys)
    rows = at([0, 0, 0, 1, -1, 2, 0, 0], [5, -1, 2, 3, 3, 3, 5, -(2**31)])
    index, count = torch.full((8, 2), 4), ints(2, 2, 2, 2, 2, 2, 0, 2)
    got = sparse_gqa_prefill(normal(8, 4, 8), cache, pages, rows, chosen(index, count), sink=torch.zeros(4), impl=impl)
    assert got.out[1:].eq(0).all() and got.lse[1:].eq(-torch.inf).all()
    assert got.out[0].isfinite().all() and got.lse[0].isfinite().all()


@IMPLS
def test_a_page_that_does_not_exist_is_skipped(impl):
    key, value, cache, pages = one(12)
    table = pages.table.clone()
    table[0, 1] = -1
    q, kept = normal(1, 4, 8, seed=4), [0, 3, 8]
    got = sparse_gqa_prefill(q, cache, replace(pages, table=table), at([0], [11]), chosen([[0, 3, 4, 7, 8]]), impl=impl)
    assert near(Partial(got.out[0], got.lse[0]), *exact(q[0], key[kept], value[kept], 8**-0.5))


@pytest.mark.parametrize("value_width", [1, 5, 6, 7, 9, 10, 11, 16, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (2, 2), (16, 1), (10, 2)])
def test_bits_do_not_depend_on_company(heads, kv_heads, value_width):
    """A row alone, among others of its own and of other sequences, anywhere in its tile.

    Narrow and odd value widths: there a matrix product's first and last rows take different paths.
    """
    keys = [normal(1100, kv_heads, 8, seed=s) for s in range(2)]
    cache, pages = paged(keys, [normal(1100, kv_heads, value_width, seed=s) for s in (2, 3)], page_size=32)
    generator = torch.Generator().manual_seed(5)
    seq = torch.randint(0, 2, (150,), generator=generator).tolist()
    position = torch.randint(0, 1100, (150,), generator=generator).tolist()
    selection = random_selection(position, 1, 20)
    q, rows = normal(150, heads, 8, seed=6), at(seq, position)
    whole = sparse_gqa_prefill(q, cache, pages, rows, selection, impl="cpu")
    for some in ([0], [149], [77], list(range(40, 75)), torch.randperm(150, generator=generator).tolist()):
        part = Selection(selection.index[some], selection.count[some], None, "position")
        got = sparse_gqa_prefill(q[some], cache, pages, Rows(rows.seq[some], rows.position[some]), part, impl="cpu")
        assert same(got, rows_of(whole, some))


@IMPLS
def test_bits_do_not_depend_on_layout_or_keys_to_come(impl):
    key, value = normal(1300, 2, 8), normal(1300, 2, 6, seed=1)
    position = [10, 399, 3]
    q, rows, selection = normal(3, 4, 8, seed=2), at([0] * 3, position), random_selection(position, 2, 9)
    want = sparse_gqa_prefill(q, *paged([key[:400]], [value[:400]]), rows, selection, impl=impl)
    key[400:], value[400:] = torch.nan, torch.inf
    for how in ({"seed": 9}, {"page_size": 7}, {"format": "kv_fp32.head", "page_size": 64}):
        assert same(sparse_gqa_prefill(q, *paged([key], [value], **how), rows, selection, impl=impl), want), how


@IMPLS
def test_nan_and_inf_reach_only_rows_that_select_them(impl):
    """0 * NaN: a mask that zeroes weights does not zero their products."""
    key, value, _, _ = one(40)
    position = [39, 39, 39, 5]
    q, rows = normal(4, 4, 8, seed=2), at([0] * 4, position)
    selection = chosen([[1, 7, 20], [1, 8, 20], [2, 9, 21], [0, 1, 2]])
    clean = sparse_gqa_prefill(q, *paged([key], [value]), rows, selection, impl=impl)

    def run_with(k=None, v=None):
        changed = [x.clone() for x in (key, value)]
        for x, put in zip(changed, (k, v), strict=True):
            for place, number in (put or {}).items():
                x[place] = number
        return sparse_gqa_prefill(q, *paged([changed[0]], [changed[1]]), rows, selection, impl=impl)

    got = run_with(k={(3, 0, 0): torch.nan, (4, 1): torch.inf}, v={(5, 1, 2): torch.nan, 6: -torch.inf, 39: torch.nan})
    assert same(got, clean)  # nobody selects 3, 4, 5, 6, 39
    got = run_with(v={(8, 1, 3): torch.nan})
    assert got.out[1, 2:, 3].isnan().all() and int(got.out.isnan().sum()) == 2 and got.lse.isfinite().all()
    assert same(rows_of(got, [0, 2, 3]), rows_of(clean, [0, 2, 3]))
    got = run_with(v={(8, 0, 3): torch.inf})
    assert got.out[1, :2, 3].eq(torch.inf).all() and int(got.out.isinf().sum()) == 2
    got = run_with(k={(20, 1, 0): torch.nan})
    assert got.lse[:2, 2:].isnan().all() and int(got.lse.isnan().sum()) == 4
    assert same(rows_of(got, [2, 3]), rows_of(clean, [2, 3]))
    got = run_with(k={1: torch.inf})  # three rows select it; scores of +inf or -inf by the query's sign, or NaN
    assert same(rows_of(got, [2]), rows_of(clean, [2])) and not same(rows_of(got, [0]), rows_of(clean, [0]))


@IMPLS
def test_a_nan_query_is_its_rows_own(impl):
    _, _, cache, pages = one(40)
    q, rows, selection = normal(3, 4, 8), at([0] * 3, [39, 38, 37]), chosen([[1, 2], [3, 4], [5, 6]])
    clean = sparse_gqa_prefill(q, cache, pages, rows, selection, impl=impl)
    q[1, 2] = torch.nan
    got = sparse_gqa_prefill(q, cache, pages, rows, selection, impl=impl)
    assert got.out[1, 2].isnan().all() and got.lse[1, 2].isnan()
    assert int(got.lse.isnan().sum()) == 1 and same(rows_of(got, [0, 2]), rows_of(clean, [0, 2]))


@IMPLS
def test_scores_below_any_finite_sentinel(impl):
    """What is not selected scores 0, what is selected -6e4 and below; exact in fp32."""
    key = torch.tensor([0.0, -5.9e4, 0.0, -6e4, -59001.0, 0.0]).view(6, 1, 1)
    cache, pages = paged([key], [torch.eye(6).view(6, 1, 6)])
    rows, q = at([0, 0, 0], [5, 5, 2]), torch.ones(3, 1, 1)
    selection = chosen([[1, 3, 4], [3, -1, -1], [3, 4, 5]])
    got = sparse_gqa_prefill(q, cache, pages, rows, selection, scale=1.0, impl=impl)
    want = torch.zeros(3, 6)
    want[0, 1], want[0, 4], want[1, 3] = 0.7310586, 0.26894143, 1.0
    assert torch.allclose(got.out[:, 0], want, atol=1e-6)
    assert got.lse[1:, 0].tolist() == [-6e4, -torch.inf]
    key = torch.tensor([0.0, -1e30, -1e30]).view(3, 1, 1)  # below any sentinel at all
    cache, pages = paged([key], [torch.eye(3).view(3, 1, 3)])
    got = sparse_gqa_prefill(q[:1], cache, pages, at([0], [2]), chosen([[1, 2]]), scale=1.0, impl=impl)
    assert got.out[0, 0].tolist() == [0.0, 0.5, 0.5]


@IMPLS
def test_products_beyond_fp32_in_keys_that_are_not_selected(impl):
    cache, pages = paged([torch.tensor([1e20, 1.0, -1e20]).view(3, 1, 1)], [torch.eye(3).view(3, 1, 3)])
    got = sparse_gqa_prefill(
        torch.full((1, 1, 1), 1e20), cache, pages, at([0], [2]), chosen([[1]]), scale=1.0, impl=impl
    )
    assert got.out[0, 0].tolist() == [0.0, 1.0, 0.0] and got.lse.item() == pytest.approx(1e20)


def test_bits_do_not_depend_on_overflow_that_company_brings_along():
    """A block that only a neighbour looks at holds a key whose product with this row leaves fp32."""
    key, value = normal(1100, 1, 8).abs(), normal(1100, 1, 8, seed=1)
    key[601] = 3e38
    cache, pages = paged([key], [value])
    q, rows, selection = (
        normal(2, 1, 8, seed=2).abs(),
        at([0, 0], [1099, 1099]),
        chosen([[*range(1, 9)], [*range(602, 610)]]),
    )
    for size in (1.0, 1e10, 1e25):
        loud = q * torch.tensor([size, 1.0]).view(2, 1, 1)
        both = sparse_gqa_prefill(loud, cache, pages, rows, selection, impl="cpu")
        alone = sparse_gqa_prefill(loud[:1], cache, pages, at([0], [1099]), chosen([[*range(1, 9)]]), impl="cpu")
        assert same(rows_of(both, [0]), alone)
        want = sparse_gqa_prefill(loud, cache, pages, rows, selection, impl="reference")
        assert torch.allclose(both.out, want.out, atol=1e-5) and torch.allclose(both.lse, want.lse, rtol=1e-5)


@IMPLS
def test_split_law(impl):
    _, _, cache, pages = one(700, 3, 8, page_size=16)
    position = [699, 650, 300, 20]
    q, rows, sink = normal(4, 9, 8, seed=7), at([0] * 4, position), normal(9, seed=8)
    selection = random_selection(position, 3, 200)
    whole = sparse_gqa_prefill(q, cache, pages, rows, selection, sink=sink, impl=impl)
    first, second = (
        Selection(part, part.ge(0).sum(-1).int(), None, "position")
        for part in (selection.index[..., :90], selection.index[..., 90:])
    )
    parts = [sparse_gqa_prefill(q, cache, pages, rows, part, impl=impl) for part in (first, second)]
    assert near(merge(parts, sink=sink, impl=impl), whole.out.double(), whole.lse.double(), 2e-6)


@IMPLS
def test_a_sink_takes_its_share(impl):
    _, _, cache, pages = one(9, 1)
    q, rows, selection = normal(1, 2, 8, seed=3), at([0], [8]), chosen([[1, 4, 6]])
    plain = sparse_gqa_prefill(q, cache, pages, rows, selection, impl=impl)
    sunk = sparse_gqa_prefill(q, cache, pages, rows, selection, sink=torch.tensor([2.0, -torch.inf]), impl=impl)
    assert same_bits(sunk.lse, plain.lse) and torch.allclose(sunk.out[0, 1], plain.out[0, 1])
    assert torch.allclose(sunk.out[0, 0], plain.out[0, 0] * torch.sigmoid(plain.lse[0, 0] - 2), atol=1e-6)


def test_a_tile_is_a_multiple_of_eight_rows_and_a_bounded_product():
    for g in range(1, 129):
        rows = cpu.tile_rows(g)
        assert rows % 8 == 0 and (rows * g <= 256 or rows == 8)


def test_cost_by_hand():
    """2 rows of 6 heads over 3 kv heads, one list each; 7 selected positions of which 5 are distinct."""
    cost = catalogue.cost("sparse_gqa_prefill")(rows=2, heads=6, kv_heads=3, width=8, value_width=4, picks=5,
                                                visited=6 * 7, distinct=3 * 5, entries=2, itemsize=2,
                                                q_itemsize=4)  # fmt: skip
    assert cost.flops == 6 * 7 * 2 * (8 + 4)
    index = 4 * (2 * 5 + 2) + 4 * 2 + 4 + 8 * 2  # selection and counts, table entries, one length, rows
    assert cost.bytes_min == 15 * 12 * 2 + 2 * 6 * 8 * 4 + index + 2 * 6 * (4 + 1) * 4


BAD = [
    ({"selection": chosen([[1], [2]], space="key")}, "selection.space is 'key'; allowed: 'position'"),
    ({"selection": chosen(torch.zeros(2, 3, 5))}, r"selection.index has shape \(2, 3, 5\).*H = 4"),
    ({"selection": chosen([[1]])}, r"selection.index has shape \(1, 1\).*R = 2"),
    ({"q": normal(2, 5, 8)}, "q has 5 heads"),
    ({"rows": at([0], [1])}, r"rows.seq has shape \(1,\)"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    _, _, cache, pages = one()
    inputs = {"q": normal(2, 4, 8), "cache": cache, "pages": pages, "rows": at([0, 0], [1, 2]),
              "selection": chosen([[1], [2]])}  # fmt: skip
    with pytest.raises(ValueError, match=match):
        sparse_gqa_prefill(**{**inputs, **change})


def test_checked_names_what_is_wrong():
    _, _, cache, pages = one(9)
    q = normal(1, 4, 8)
    with run.checked():
        # A later position than the row's own is what a mask is for.
        sparse_gqa_prefill(q, cache, pages, at([0], [3]), chosen([[1, 8]]))
        for selection, match in (
            (chosen([[1, 9]]), "selection.index names position 9; sequence 0 has 9"),
            (chosen([[1, 2]], [3]), r"selection.count is .*allowed: 0 to 2"),
        ):
            with pytest.raises(ValueError, match=match):
                sparse_gqa_prefill(q, cache, pages, at([0], [3]), selection)
        with pytest.raises(ValueError, match="rows.seq names"):
            sparse_gqa_prefill(q, cache, pages, at([3], [3]), chosen([[1, 2]]))
        with pytest.raises(ValueError, match="pages.table of sequence 0"):
            sparse_gqa_prefill(q, cache, replace(pages, table=pages.table - 9), at([0], [3]), chosen([[1, 2]]))
