"""Laws of lowrank that the contract does not state for every operator."""

import math

import numpy as np
import pytest
import torch
from lowrank_inputs import at, exact, keep, paged

from tilesieve.formats import score
from tilesieve.ops import run
from tilesieve.ops.lowrank.op import INT8_COLUMNS, lowrank
from tilesieve.types import Pages, Projection, ScoreCache

IMPLS = ("reference", "cpu")
impls = pytest.mark.parametrize("impl", IMPLS)
formats = pytest.mark.parametrize("format", score.FORMATS)


@impls
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (5, 1)])
def test_with_all_dimensions_it_is_the_attention_score(heads, kv_heads, impl):
    q, keys = torch.randn(3, heads, 32), torch.randn(3, 21, kv_heads, 32)
    cache, pages = paged(keys, "score_fp32")
    got = lowrank(q, keep(32), cache, pages, at([0, 1, 2], [20, 20, 20]), impl=impl)
    want = exact(q, keys, 32**-0.5)
    assert (got.double() - want).abs().max() <= 1e-6 * want.abs().max()  # fp32 sums; largest seen 1.3e-7


@impls
def test_scores_by_hand_and_minus_infinity_everywhere_else(impl):
    keys = torch.tensor([[[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]]])
    cache, pages = paged(keys, "score_fp32", page_size=2)
    pages = Pages(pages.table, pages.length, 2, 5)
    q = torch.tensor([[[1.0, 10.0]]]).expand(4, 1, 2)
    got = lowrank(q, keep(2), cache, pages, at([0, 0, 0, 0], [0, 1, 2, 99]), scale=2.0, impl=impl)
    low = -math.inf
    full = [42.0, 86.0, 130.0, low, low]
    assert got[:, 0].tolist() == [[42.0, low, low, low, low], [42.0, 86.0, low, low, low], full, full]


@impls
def test_the_default_scale_is_that_of_the_full_width(impl):
    q, keys = torch.randn(1, 1, 64), torch.randn(1, 4, 1, 8)
    cache, pages = paged(keys, "score_fp32")
    got = lowrank(q, keep(64, 8), cache, pages, at([0], [3]), impl=impl)
    assert torch.equal(got, lowrank(q, keep(64, 8), cache, pages, at([0], [3]), scale=64**-0.5, impl=impl))
    torch.testing.assert_close(got.double(), exact(q[..., :8], keys, 64**-0.5), rtol=1e-6, atol=1e-6)


@impls
@formats
def test_nothing_unseen_reaches_a_row(format, impl):
    """The tail of a page, unused pages and later positions hold NaN; the scores are as without them."""
    keys = torch.randn(2, 10, 2, 4)
    cache, pages = paged(keys, format, page_size=4, spare=2)
    q, rows = torch.randn(3, 4, 4), at([0, 1, 0], [9, 5, -1])
    want = lowrank(q, keep(4), cache, pages, rows, impl=impl)
    seen = torch.zeros(cache.data.shape[:2], dtype=torch.bool)
    for b, last in ((0, 9), (1, 5)):
        for p in range(last + 1):
            seen[pages.table[b, p // 4].long(), p % 4] = True
    page, offset = (~seen).nonzero(as_tuple=True)
    for tensor in (cache.data, cache.scale):
        if tensor is not None and tensor.dtype.is_floating_point:
            tensor[page, offset] = torch.full((len(page), *tensor.shape[2:]), torch.nan).to(tensor.dtype)
    got = lowrank(q, keep(4), cache, pages, rows, impl=impl)
    assert torch.equal(got, want)
    assert got[0].isfinite().all() and got[1, :, :6].isfinite().all()
    assert (got[1, :, 6:] == -math.inf).all() and (got[2] == -math.inf).all()


@impls
def test_a_key_that_is_nan_scores_nan_in_its_own_column_only(impl):
    keys = torch.randn(1, 6, 2, 4)
    keys[0, 3, 1, 2] = torch.nan
    for format in score.FORMATS:
        cache, pages = paged(keys, format)
        got = lowrank(torch.randn(2, 4, 4), keep(4), cache, pages, at([0, 0], [5, 2]), impl=impl)
        assert got.isnan().nonzero().tolist() == [[0, 2, 3], [0, 3, 3]]


@impls
@formats
def test_a_query_that_is_nan_stays_in_its_head(format, impl):
    keys = torch.randn(1, 6, 2, 4)
    cache, pages = paged(keys, format)
    q, rows = torch.randn(3, 4, 4), at([0, 0, 0], [5, 5, 5])
    want = lowrank(q, keep(4), cache, pages, rows, impl=impl)
    q[1, 2, 0] = torch.nan
    got = lowrank(q, keep(4), cache, pages, rows, impl=impl)
    assert got[1, 2].isnan().all()
    got[1, 2] = want[1, 2]
    assert torch.equal(got, want)


@impls
@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 511, 512, 513, 1025])
def test_any_length_and_any_bound(length, impl):
    keys = torch.randn(1, length, 1, 4)
    cache, pages = paged(keys, "score_fp32", page_size=4)
    for bound in (length, length + 1, length + 517):
        got = lowrank(torch.ones(1, 1, 4), keep(4), cache, Pages(pages.table, pages.length, 4, bound),
                      at([0], [2**31 - 1]), scale=1.0, impl=impl)  # fmt: skip
        assert got.shape == (1, 1, bound)
        torch.testing.assert_close(got[0, 0, :length], keys.sum(-1)[0, :, 0], rtol=1e-5, atol=1e-6)
        assert (got[0, 0, length:] == -math.inf).all()


@impls
@pytest.mark.parametrize("page_size", [7, 48, 5000])
def test_pages_need_not_divide_what_is_read_at_once(page_size, impl):
    q, keys = torch.randn(2, 2, 4), torch.randn(1, 4700, 1, 4)
    cache, pages = paged(keys, "score_fp32", page_size)
    got = lowrank(q, keep(4), cache, pages, at([0, 0], [4699, 4650]), scale=1.0, impl=impl)
    want = exact(q, keys.expand(2, -1, -1, -1), 1.0)
    want[1, :, 4651:] = -math.inf
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@impls
def test_a_sequence_without_pages_is_never_dereferenced(impl):
    """Length 0 with a page of -1, and a pool without a single page."""
    table = torch.tensor([[2], [-1]], dtype=torch.int32)
    cache = score.new_scores("score_fp32", 3, 4, 1, 2)
    pages = Pages(table, torch.tensor([3, 0], dtype=torch.int32), 4, 4)
    got = lowrank(torch.ones(2, 1, 2), keep(2), cache, pages, at([0, 1], [2, 0]), impl=impl)
    assert got[0, 0].tolist() == [0, 0, 0, -math.inf] and (got[1] == -math.inf).all()
    empty = score.new_scores("score_fp32", 0, 4, 1, 2)
    assert (lowrank(torch.ones(2, 1, 2), keep(2), empty, pages, at([0, 1], [2, 0]), impl=impl) == -math.inf).all()


@impls
@pytest.mark.parametrize("bad", [-1, -7, 6, 2**31 - 1])
def test_a_column_without_page_is_minus_infinity(bad, impl):
    cache, pages = paged(torch.randn(1, 12, 1, 4), "score_int8", spare=0)
    cache = ScoreCache(torch.cat([cache.data, cache.data]), torch.cat([cache.scale, cache.scale]), cache.format)
    want = lowrank(torch.ones(1, 1, 4), keep(4), cache, pages, at([0], [10]), impl=impl)
    pages.table[0, 1] = bad
    got = lowrank(torch.ones(1, 1, 4), keep(4), cache, pages, at([0], [10]), impl=impl)
    want[..., 4:8] = -math.inf
    assert torch.equal(got, want)
    with run.checked():
        if bad < 0:  # a hole is legal
            lowrank(torch.ones(1, 1, 4), keep(4), cache, pages, at([0], [10]), impl=impl)
        else:
            with pytest.raises(ValueError, match=f"pages.table names page {bad}; the cache has 6"):
                lowrank(torch.ones(1, 1, 4), keep(4), cache, pages, at([0], [10]), impl=impl)


@pytest.mark.parametrize("seed", range(4))
def test_int8_scores_are_exact_integers_then_three_fp32_products(seed):
    """Against numpy, bit for bit, for both implementations."""
    torch.manual_seed(seed)
    q, keys = torch.randn(3, 4, 40) * 10 ** torch.randn(3, 4, 1), torch.randn(1, 70, 2, 40)
    cache, pages = paged(keys, "score_int8")
    codes, q_scale = score.int8_amax127_rne(q)
    k_codes, k_scale = (t[0].repeat_interleave(2, 1) for t in score.int8_amax127_rne(keys))
    total = np.einsum("rhc,lhc->rhl", codes.numpy().astype(np.int64), k_codes.numpy().astype(np.int64))
    with_keys = total.astype(np.float32) * k_scale.numpy().T[None]
    want = with_keys * (q_scale.numpy() * np.float32(0.3))[..., None]
    for impl in IMPLS:
        got = lowrank(q, keep(40), cache, pages, at([0, 0, 0], [69, 69, 69]), scale=0.3, impl=impl)
        assert np.array_equal(got.numpy(), want)


def test_the_widest_int8_sum_is_still_exact_and_a_wider_one_is_refused():
    assert 127**2 * INT8_COLUMNS < 2**24 <= 127**2 * (INT8_COLUMNS + 1)
    for columns in (INT8_COLUMNS, INT8_COLUMNS + 1):
        # All codes +-127 but one: the largest sum that is no multiple of 127^2.
        keys = torch.full((1, 2, 1, columns), 127.0)
        keys[0, :, 0, 5] = 126.0
        cache, pages = paged(keys, "score_int8")
        args = (torch.full((1, 1, columns), 127.0), keep(columns), cache, pages, at([0], [1]))
        if columns > INT8_COLUMNS:
            with pytest.raises(ValueError, match="impl is 'cpu': int8 sums .* d_score = 1040; it is 1041"):
                lowrank(*args, impl="cpu")
            assert torch.equal(lowrank(*args, scale=1.0), lowrank(*args, scale=1.0, impl="reference"))
        else:
            for impl in IMPLS:
                assert lowrank(*args, scale=1.0, impl=impl).flatten().tolist() == [127.0**2 * columns - 127] * 2


@impls
@formats
def test_a_score_is_within_the_error_of_its_factors(format, impl):
    """|q'k' - qk| <= sum of |q| dk + |k| dq + dq dk, each factor's error as its format states it."""
    q, keys = torch.randn(2, 6, 16), torch.randn(2, 40, 2, 16)
    keys[..., 3] *= 30
    cache, pages = paged(keys, format)

    def error(x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        amax = x.abs().amax(-1, keepdim=True)
        return {
            "score_fp32": torch.zeros_like(x), "score_bf16": x.abs() * 2.0**-8, "score_fp16": x.abs() * 2.0**-11,
            "score_int8": (amax / 254).expand_as(x), "score_fp8": torch.maximum(x.abs() / 16, amax / 448 / 1024),
        }[format]  # fmt: skip

    many = keys.double().repeat_interleave(3, 2)
    dq, dk = error(q), error(keys).repeat_interleave(3, 2)
    bound = torch.einsum("rhc,rlhc->rhl", q.double().abs() + dq, dk)
    bound += torch.einsum("rhc,rlhc->rhl", dq, many.abs())
    want = exact(q, keys, 1.0)
    got = lowrank(q, keep(16), cache, pages, at([0, 1], [39, 39]), scale=1.0, impl=impl)
    assert ((got.double() - want).abs() <= bound * 1.0001 + 1e-6 * want.abs().amax()).all()
    if format != "score_fp32":  # the bound is not idle
        assert (got.double() - want).abs().max() > 0.02 * bound.max()


@impls
@formats
def test_a_decode_row_has_the_bits_it_has_in_a_prefill(format, impl):
    """Row alone, in a batch, with more keys appended after it, with another bound: one score."""
    keys = torch.randn(1, 1100, 3, 16)
    cache, pages = paged(keys, format, page_size=16)
    basis = torch.randn(3, 64, 16)
    projection = Projection("pca", None, basis, None, 64)
    q = torch.randn(70, 9, 64)
    rows = at([0] * 70, list(range(580, 650)))
    batch = lowrank(q, projection, cache, pages, rows, impl=impl)
    for r in (0, 33, 69):
        short = Pages(pages.table[:, :45], torch.tensor([651], dtype=torch.int32), 16, 700)
        alone = lowrank(q[r : r + 1], projection, cache, short, at([0], [580 + r]), impl=impl)
        assert torch.equal(alone[0, :, :651], batch[r, :, :651])
    few = lowrank(q[30:37], projection, cache, pages, at([0] * 7, list(range(610, 617))), impl=impl)
    assert torch.equal(few, batch[30:37])


@impls
def test_rows_of_several_sequences_in_any_order(impl):
    """Interleaved, reversed and unused rows give what each sequence gives by itself."""
    keys = torch.randn(3, 50, 2, 8)
    cache, pages = paged(keys, "score_fp32", page_size=7)
    q = torch.randn(41, 4, 8)
    seq = [r % 3 for r in range(41)]
    position = [(r * 17) % 60 - 5 for r in range(41)]
    got = lowrank(q, keep(8), cache, pages, at(seq, position), impl=impl)
    for b in range(3):
        mine = [r for r in reversed(range(41)) if seq[r] == b]
        rows = at([b] * len(mine), [position[r] for r in mine])
        assert torch.equal(lowrank(q[mine], keep(8), cache, pages, rows, impl=impl), got[mine])
    swapped = Pages(pages.table.flip(0), pages.length, 7, pages.max_length)
    assert torch.equal(lowrank(q, keep(8), cache, swapped, at([2 - s for s in seq], position), impl=impl), got)


@impls
def test_a_key_cache_reads_as_a_score_cache_of_all_dimensions(impl):
    """Head-major: a view whose pages and heads are not in the order of memory."""
    q, keys = torch.randn(2, 6, 8), torch.randn(2, 13, 3, 8)
    cache, pages = paged(keys, "score_bf16")
    head_major = cache.data.transpose(1, 2).contiguous().transpose(1, 2)
    assert not head_major.is_contiguous()
    rows = at([0, 1], [12, 8])
    want = lowrank(q, keep(8), cache, pages, rows, impl=impl)
    view = ScoreCache(head_major, None, "score_bf16")
    assert torch.equal(lowrank(q, keep(8), view, pages, rows, impl=impl), want)


@impls
def test_scores_beyond_any_finite_sentinel_are_kept(impl):
    """Scores of -7e4 and below are scores; only columns that are not there are -inf."""
    keys = torch.full((1, 5, 1, 1), -7e4)
    keys[0, 2] = -3e38
    cache, pages = paged(keys, "score_fp32")
    pages = Pages(pages.table, pages.length, 4, 8)
    got = lowrank(torch.ones(1, 1, 1), keep(1), cache, pages, at([0], [4]), impl=impl)[0, 0]
    assert torch.equal(got[:5], keys[0, :, 0, 0]) and (got[5:] == -math.inf).all()
