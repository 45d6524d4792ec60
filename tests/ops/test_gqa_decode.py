"""Laws of gqa_decode: right values, what is not seen is not there, the same bits everywhere."""

from dataclasses import replace

import pytest
import torch
from attention_inputs import at, exact, ints, near, normal, one, paged
from harness import same_bits

from tilesieve.ops import catalogue, run
from tilesieve.ops.gqa_decode import cpu, reference
from tilesieve.ops.gqa_decode.op import gqa_decode
from tilesieve.types import KVCache, Pages

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def same(a, b):
    return same_bits(a.out, b.out) and same_bits(a.lse, b.lse)


@IMPLS
@pytest.mark.parametrize(("heads", "kv_heads", "value_width"), [(9, 3, 8), (2, 2, 5), (16, 1, 8), (4, 2, 12)])
def test_values(impl, heads, kv_heads, value_width):
    """Against an oracle; values narrower or wider than keys, past the first block of 512 keys."""
    key, value, cache, pages = one(577, kv_heads, 8, value_width, page_size=16)
    q, sink = normal(3, heads, 8, seed=5), normal(heads, seed=6)
    got = gqa_decode(q, cache, pages, at([0, 0, 0], [576, 0, 511]), scale=0.3, sink=sink, impl=impl)
    for r, n in enumerate((577, 1, 512)):
        out, lse = exact(q[r], key[:n], value[:n], 0.3, sink)
        assert near(type(got)(got.out[r], got.lse[r]), out, lse)


@IMPLS
def test_default_scale_is_one_over_the_root_of_the_width(impl):
    _, _, cache, pages = one()
    q = normal(1, 4, 8)
    assert same(gqa_decode(q, cache, pages, at([0], [36]), impl=impl),
                gqa_decode(q, cache, pages, at([0], [36]), scale=8**-0.5, impl=impl))  # fmt: skip


@IMPLS
def test_equals_torch(impl):
    key, value, cache, pages = one(37, 3, 8)
    q = normal(1, 9, 8, seed=3)
    want = torch.nn.functional.scaled_dot_product_attention(
        q[0, :, None].double(), *(x.double().transpose(0, 1).repeat_interleave(3, 0) for x in (key, value))
    )
    got = gqa_decode(q, cache, pages, at([0], [36]), impl=impl)
    assert torch.allclose(got.out[0].double(), want[:, 0], atol=1e-6)


@IMPLS
def test_scores_below_any_finite_sentinel(impl):
    """A mask value of -5e4 would outweigh these; all products are exact in fp32."""
    key = torch.tensor([-5.9e4, -6e4, -59001.0, -59000.0]).view(4, 1, 1).expand(4, 1, 2).clone()
    value = torch.eye(4).view(4, 1, 4)
    cache, pages = paged([key], [value])
    got = gqa_decode(torch.tensor([[[1.0, 0.0]]]), cache, pages, at([0], [3]), scale=1.0, impl=impl)
    want = torch.softmax(torch.tensor([0.0, -1000.0, -1.0, 0.0], dtype=torch.float64), 0)
    assert torch.allclose(got.out[0, 0].double(), want, atol=1e-6)
    assert got.lse[0, 0] == pytest.approx(-59000 + 0.861995, abs=0.005)  # fp32 is 0.004 apart there


@IMPLS
def test_rows_that_see_nothing(impl):
    """A sequence of length 0 whose table entry is -1; rows of padding."""
    key, value = normal(3, 2, 8), normal(3, 2, 8, seed=1)
    cache, pages = paged([key, key[:0]], [value, value[:0]])
    pages = replace(pages, table=torch.stack([pages.table[0], torch.full_like(pages.table[0], -1)]))
    rows = at([0, 1, 0, -1, 2, 0], [2, 5, -1, 1, 1, -(2**31)])
    got = gqa_decode(normal(6, 4, 8, seed=2), cache, pages, rows, sink=torch.zeros(4), impl=impl)
    assert got.out[1:].eq(0).all() and got.lse[1:].eq(-torch.inf).all()
    assert got.out[0].isfinite().all() and got.lse[0].isfinite().all()


@IMPLS
def test_a_position_past_the_length_sees_the_length(impl):
    _, _, cache, pages = one(10)
    q = normal(1, 4, 8).expand(3, 4, 8)
    got = gqa_decode(q, cache, pages, at([0, 0, 0], [9, 10, 2**31 - 1]), impl=impl)
    assert same_bits(got.out[1], got.out[0]) and same_bits(got.out[2], got.out[0])


@IMPLS
def test_a_page_that_does_not_exist_is_skipped(impl):
    key, value, cache, pages = one(12)
    for lost in (-1, 99):
        table = pages.table.clone()
        table[0, 1] = lost
        q = normal(1, 4, 8, seed=4)
        got = gqa_decode(q, cache, replace(pages, table=table), at([0], [11]), scale=1.0, impl=impl)
        kept = [*range(4), *range(8, 12)]
        assert near(type(got)(got.out[0], got.lse[0]), *exact(q[0], key[kept], value[kept], 1.0))


@IMPLS
def test_bits_do_not_depend_on_where_pages_lie_or_how(impl):
    key, value = normal(600, 2, 8), normal(600, 2, 6, seed=1)
    q, rows = normal(2, 4, 8, seed=2), at([0, 0], [599, 300])
    want = gqa_decode(q, *paged([key], [value]), rows, impl=impl)
    for how in ({"seed": 9}, {"page_size": 7}, {"format": "kv_fp32.head"}, {"format": "kv_fp32.head", "page_size": 64}):
        assert same(gqa_decode(q, *paged([key], [value], **how), rows, impl=impl), want), how


@IMPLS
@pytest.mark.parametrize("layout", ["token", "head"])
def test_padded_pages_and_columns(impl, layout):
    """Page strides beyond a page's own size, and rows cut out of wider ones (no table of whole rows)."""
    _, _, cache, pages = one(30, 2, 8, format=f"kv_fp32.{layout}")
    q, rows = normal(1, 4, 8), at([0], [29])
    want = gqa_decode(q, cache, pages, rows, impl=impl)

    def wide(pool, extra):
        big = torch.full([n + more for n, more in zip(pool.shape, extra, strict=True)], torch.nan)
        view = big[tuple(slice(n) for n in pool.shape)]
        view.copy_(pool)
        return view

    for extra in ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 3), (0, 0, 0, 8), (2, 1, 1, 1)):
        other = KVCache(wide(cache.key, extra), wide(cache.value, extra), cache.format)
        assert same(gqa_decode(q, other, pages, rows, impl=impl), want), extra


@IMPLS
def test_bits_do_not_depend_on_keys_to_come(impl):
    """The same row with the keys after its position absent, present or NaN."""
    key, value = normal(1300, 2, 8), normal(1300, 2, 8, seed=1)
    q = normal(1, 4, 8, seed=2)
    short = gqa_decode(q, *paged([key[:400]], [value[:400]]), at([0], [399]), impl=impl)
    assert same(gqa_decode(q, *paged([key], [value]), at([0], [399]), impl=impl), short)
    key[400:] = torch.nan
    value[400:] = torch.inf
    assert same(gqa_decode(q, *paged([key], [value]), at([0], [399]), impl=impl), short)


@IMPLS
def test_a_nan_or_inf_that_is_seen_shows_where_it_belongs(impl):
    key, value, _, _ = one(20)
    q, rows = normal(2, 4, 8, seed=2), at([0, 0], [19, 4])

    def run_with(change):
        k, v = key.clone(), value.clone()
        change(k, v)
        return gqa_decode(q, *paged([k], [v]), rows, impl=impl)

    clean = run_with(lambda k, v: None)
    got = run_with(lambda k, v: v[7, 1].index_fill_(0, torch.tensor([3]), torch.nan))
    assert got.out[0, 2:, 3].isnan().all() and int(got.out.isnan().sum()) == 2
    assert same_bits(got.out[1], clean.out[1]) and torch.allclose(got.lse, clean.lse, atol=1e-5)
    got = run_with(lambda k, v: v[7, 0].index_fill_(0, torch.tensor([3]), -torch.inf))
    assert got.out[0, :2, 3].eq(-torch.inf).all() and int(got.out.isfinite().sum()) == got.out.numel() - 2
    got = run_with(lambda k, v: k[7, 0].index_fill_(0, torch.tensor([3]), torch.nan))
    assert got.out[0, :2].isnan().all() and got.lse[0, :2].isnan().all() and int(got.lse.isnan().sum()) == 2
    # A key at -inf times a query > 0 weighs nothing: as if it were not there.
    q = q.abs()
    got = run_with(lambda k, v: k[7].index_fill_(1, torch.tensor([3]), -torch.inf))
    left = [p for p in range(20) if p != 7]
    assert near(type(got)(got.out[0], got.lse[0]), *exact(q[0], key[left], value[left], 8**-0.5))
    got = run_with(lambda k, v: k.fill_(-torch.inf))
    assert got.out.eq(0).all() and got.lse.eq(-torch.inf).all()


@IMPLS
def test_products_beyond_fp32(impl):
    """Scores of 1e40 are no number in fp32; softmax of equal ones is."""
    cache, pages = paged([torch.full((2, 1, 2), 1e20)], [torch.tensor([1.0, 3.0]).view(2, 1, 1)])
    got = gqa_decode(torch.full((1, 1, 2), 1e20), cache, pages, at([0], [1]), scale=1.0, impl=impl)
    assert got.out.item() == 2.0


@IMPLS
def test_a_sink_is_a_key_with_a_value_of_zero(impl):
    key, value, cache, pages = one(9, 1)
    q = normal(1, 2, 8, seed=3)
    plain = gqa_decode(q, cache, pages, at([0], [8]), impl=impl)
    sunk = gqa_decode(q, cache, pages, at([0], [8]), sink=torch.tensor([2.0, -torch.inf]), impl=impl)
    assert same_bits(sunk.lse, plain.lse)
    share = plain.lse[0, 0].exp() / (plain.lse[0, 0].exp() + torch.tensor(2.0).exp())
    assert torch.allclose(sunk.out[0, 0], plain.out[0, 0] * share, atol=1e-6)
    assert torch.allclose(sunk.out[0, 1], plain.out[0, 1])
    assert gqa_decode(q, cache, pages, at([0], [8]), sink=torch.full((2,), torch.inf), impl=impl).out.eq(0).all()


def test_the_cpu_form_asks_the_reference_only_where_it_must(monkeypatch):
    _, _, cache, pages = one(20)
    monkeypatch.setattr(reference, "gqa_decode", lambda *a: pytest.fail("the reference ran"))
    gqa_decode(normal(3, 4, 8), cache, pages, at([0, 0, 0], [19, -1, 3]), impl="cpu")
    assert cpu.reference is reference


def test_cost_by_hand():
    """3 rows of 8 heads over 2 kv heads: keys of 16, values of 4, contexts 5, 5 and 3 of one sequence."""
    cost = catalogue.cost("gqa_decode")(rows=3, heads=8, kv_heads=2, width=16, value_width=4, visited=8 * 13,
                                        distinct=2 * 5, entries=2, itemsize=2, q_itemsize=4)  # fmt: skip
    assert cost.flops == 8 * (5 + 5 + 3) * 2 * (16 + 4)
    assert cost.bytes_min == 2 * 5 * 20 * 2 + 3 * 8 * 16 * 4 + 4 * (2 + 1 + 6) + 4 * 3 * 8 * (4 + 1)


def test_intensity_of_long_contexts_is_the_group():
    """bf16: 4 D FLOPs for each query head and position, 4 D bytes for each kv head and position."""
    cost = catalogue.cost("gqa_decode")(rows=1, heads=32, kv_heads=4, width=128, visited=32 << 20, distinct=4 << 20)
    assert cost.intensity == pytest.approx(8, rel=1e-3)


BAD = [
    ({"q": normal(2, 5, 8)}, "q has 5 heads.*multiple of the cache's 2"),
    ({"q": normal(2, 4, 9)}, r"cache.key has shape .* with D = 9"),
    ({"q": normal(2, 4, 8).double()}, "q is torch.float64"),
    ({"rows": at([0], [0])}, r"rows.seq has shape \(1,\).*R = 2"),
    ({"sink": torch.zeros(3)}, r"sink has shape \(3,\).*H = 4"),
    ({"pages": Pages(torch.zeros(1, 9).int(), ints(3), 8, 3)}, "pages.page_size is 8; allowed: 4"),
    ({"pages": Pages(torch.zeros(1, 9).long(), ints(3), 4, 3)}, "pages.table is torch.int64"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    _, _, cache, pages = one()
    inputs = {"q": normal(2, 4, 8), "cache": cache, "pages": pages, "rows": at([0, 0], [1, 2])}
    with pytest.raises(ValueError, match=match):
        gqa_decode(**{**inputs, **change})


def test_a_cache_read_by_another_tag_raises():
    """Half a number read as a whole one garbles silently; the tag tells."""
    _, _, cache, pages = one()
    with pytest.raises(ValueError, match="its tag 'kv_bf16.token' says"):
        gqa_decode(normal(1, 4, 8), replace(cache, format="kv_bf16.token"), pages, at([0], [3]))


CONTENTS = [
    ({"table": torch.tensor([[0, 1, 2, 3, 4, 5, -1, 7, 8, 9]], dtype=torch.int32)}, "pages.table of sequence 0"),
    ({"table": torch.tensor([[0, 1, 2, 3, 4, 5, 99, 7, 8, 9]], dtype=torch.int32)}, "pages.table of sequence 0"),
    ({"length": ints(41)}, r"pages.length is \[41\]; allowed: 0 to 40"),
    ({"length": ints(-1)}, "pages.length"),
    ({"max_length": 5}, "pages.max_length is 5; a row sees 7"),
]


@pytest.mark.parametrize(("change", "match"), CONTENTS)
def test_checked_names_what_is_wrong(change, match):
    _, _, cache, pages = one()
    with run.checked():
        gqa_decode(normal(1, 4, 8), cache, pages, at([0], [6]))
        gqa_decode(normal(1, 4, 8), cache, replace(pages, max_length=7), at([0], [6]))
        with pytest.raises(ValueError, match=match):
            gqa_decode(normal(1, 4, 8), cache, replace(pages, **change), at([0], [6]))
        with pytest.raises(ValueError, match="rows.seq names"):
            gqa_decode(normal(1, 4, 8), cache, pages, at([1], [6]))
