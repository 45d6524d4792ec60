"""The laws of grouped_gemm."""

import pytest
import torch
from harness import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from moe_inputs import groups_of, whole

from tilesieve.formats.fp8 import dequantise_blocks, dequantise_rows, quantise_blocks, quantise_rows
from tilesieve.ops import products
from tilesieve.ops.grouped_gemm.op import grouped_gemm
from tilesieve.ops.run import checked

IMPLS = ("reference", "cpu")
impls = pytest.mark.parametrize("impl", IMPLS)
E4M3 = torch.float8_e4m3fn


def by_hand(x, counts, weight, starts=None):
    """Each group's rows times its matrix; starts: where groups begin, if not one after the other."""
    out, start = torch.zeros(len(x), weight[0].shape[0]), 0
    for e, count in enumerate(counts):
        start = start if starts is None else starts[e]
        out[start : start + count] = x[start : start + count] @ weight[e].T
        start += count
    return out


@impls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [(3, 0, 5), (128, 130, 65), (0, 0, 7), (1,) * 20, (257,), (0, 0)])
def test_every_row_meets_its_own_expert(impl, dtype, counts):
    """Group sizes that are no multiple of a tile, single rows, empty groups: every row is right."""
    x, weight = whole(sum(counts), 24), whole(len(counts), 40, 24)
    got = grouped_gemm(x.to(dtype), groups_of(counts), weight.to(dtype), dtype=torch.float32, impl=impl)
    assert torch.equal(got, by_hand(x, counts, weight))


@impls
def test_a_list_is_a_stack(impl):
    x, weight = torch.randn(9, 20), torch.randn(4, 24, 20)
    groups = groups_of((3, 0, 2, 4))
    stacked = grouped_gemm(x, groups, weight, impl=impl)
    assert same_bits(grouped_gemm(x, groups, list(weight), impl=impl), stacked)
    # Out of a file, a matrix may begin anywhere.
    flat = torch.empty(4 * 24 * 20 + 1)
    shifted = flat[1:].view(4, 24, 20).copy_(weight)
    assert same_bits(grouped_gemm(x, groups, [*shifted], impl=impl), stacked)
    assert same_bits(grouped_gemm(x, groups, [w.t().contiguous().t() for w in weight], impl=impl), stacked)


@impls
def test_sums_are_fp32_and_rounded_once(impl):
    """A bf16 sum of 256 + 1 + 1 stays at 256."""
    x, weight = torch.tensor([[256.0, 1, 1]]), torch.ones(1, 1, 3)
    got = grouped_gemm(x.bfloat16(), groups_of((1,)), weight.bfloat16(), impl=impl)
    assert got.dtype == torch.bfloat16 and got.item() == 258.0
    assert grouped_gemm(x.half(), groups_of((1,)), weight.half(), impl=impl).dtype == torch.float16
    fine = torch.tensor([[256.0, 1]])
    wide = grouped_gemm(fine.bfloat16(), groups_of((1,)), weight[..., :2].bfloat16(), dtype=torch.float32, impl=impl)
    assert wide.item() == 257.0


@impls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_past_the_end_and_padding_are_zero_and_unread(impl, dtype):
    """Also in a caller's out, whatever it held; also where all rows are such (trailing -1, an empty expert)."""
    groups = groups_of((3, 0, 2), align=4, tail=3)
    x = torch.full((11, 8), torch.nan, dtype=dtype)
    live = groups.token.ge(0) & (torch.arange(11) < 8)
    x[live] = whole(5, 8).to(dtype)
    weight = whole(3, 16, 8).to(dtype)
    weight[1] = torch.nan  # no rows: not read
    out = torch.full((11, 16), 77.0, dtype=dtype)
    got = grouped_gemm(x, groups, weight, out=out, impl=impl)
    assert got is out and bool((out[~live] == 0).all()) and bool(out.isfinite().all())
    want = by_hand(x.float().nan_to_num(0.0), (3, 0, 2), weight.float(), starts=(0, 4, 4))
    assert torch.equal(out.float(), want)
    nothing = groups_of((0, 0, 0), tail=5)
    out = grouped_gemm(torch.full((5, 8), torch.nan, dtype=dtype), nothing, weight, impl=impl)
    assert bool((out == 0).all())


@impls
def test_nan_and_infinity_stay_in_their_row(impl):
    x, weight = whole(6, 16), whole(2, 24, 16)
    want = grouped_gemm(x, groups_of((4, 2)), weight, impl=impl)
    x[1, 3], x[4, 0] = torch.nan, torch.inf
    got = grouped_gemm(x, groups_of((4, 2)), weight, impl=impl)
    assert bool(got[1].isnan().all()) and not bool(got[4].isfinite().any())
    assert same_bits(got[[0, 2, 3, 5]], want[[0, 2, 3, 5]])


@pytest.mark.parametrize(("depth", "width"), [(64, 48), (37, 19), (256, 200), (8, 3)])
def test_a_row_has_the_same_bits_in_any_group(depth, width):
    """Alone, among few, among hundreds, at any place, beside other experts, in a buffer with padding."""
    row, weight = torch.randn(1, depth), torch.randn(3, width, depth)
    want = grouped_gemm(row, groups_of((0, 1, 0)), weight)
    for count in (*range(2, 20), 31, 32, 33, 63, 65, 129, 300):
        for place in {0, count // 2, count - 1}:
            x = torch.randn(count + 7, depth)
            x[5 + place] = row
            got = grouped_gemm(x, groups_of((5, count, 2)), weight)
            assert same_bits(got[5 + place][None], want), (count, place)


def test_the_same_bits_in_e4m3():
    x, weight = torch.randn(70, 300), torch.randn(2, 200, 300)
    code, scale = quantise_rows("e4m3_amax_pow2", x)
    w, w_scale = quantise_blocks("e4m3_amax_pow2", weight)
    whole_batch = grouped_gemm(code, groups_of((69, 1)), w, x_scale=scale, weight_scale=w_scale, dtype=torch.float32)
    for n in (0, 31, 68):
        one = slice(n, n + 1)
        got = grouped_gemm(code[one], groups_of((1, 0)), w, x_scale=scale[one], weight_scale=w_scale,
                           dtype=torch.float32)  # fmt: skip
        assert same_bits(got, whole_batch[one])


def test_tile_sizes_that_disagree_are_not_used(monkeypatch):
    x, weight, groups = torch.randn(90, 40), torch.randn(3, 24, 40), groups_of((3, 70, 17))
    want = grouped_gemm(x, groups, weight)
    products._agreeing.cache_clear()
    monkeypatch.setattr(products.torch, "equal", lambda a, b: False)
    assert products.sizes(40, 24, x.device) == (products.BASE,)
    got = grouped_gemm(x, groups, weight)
    monkeypatch.undo()
    products._agreeing.cache_clear()
    assert same_bits(got, want)
    assert products.BASE in products.sizes(40, 24, x.device)


@pytest.mark.parametrize("allowed", [(32,), products.SIZES, (8, 32, 128)])
@pytest.mark.parametrize("count", [(0, 5, 700, 0, 33), (1,) * 300, (2000,), ()])
def test_tiles_hold_every_row_once(allowed, count):
    seen, experts = [], []
    for source, tiles in products.passes(count, allowed, torch.device("cpu")):
        assert len(source) <= products.PASS + max(allowed)
        assert [t.first for t in tiles] == [0, *(t.last for t in tiles[:-1])] and tiles[-1].last == len(source)
        for tile in tiles:
            assert tile.last - tile.first in allowed
            rows = [n for n in source[tile.first : tile.last].tolist() if n >= 0]
            assert rows
            seen += rows
            experts += [tile.expert] * len(rows)
    assert seen == list(range(sum(count)))
    assert experts == [e for e, c in enumerate(count) for _ in range(c)]


def one_product(x, w, xs, ws, impl, dtype=torch.float32):
    return grouped_gemm(x.to(E4M3), groups_of((len(x),)), w.to(E4M3)[None], x_scale=xs, weight_scale=ws[None],
                        dtype=dtype, impl=impl)  # fmt: skip


@impls
def test_e4m3_scales_stand_for_their_block(impl):
    """K 300 and M 200: the last block of each is ragged. Codes are ones, so a block adds its columns."""
    xs = torch.tensor([[1.0, 2.0, 4.0], [0.5, 8.0, 1.0]])
    ws = torch.tensor([[1.0, 3.0, 5.0], [7.0, 9.0, 11.0]])
    got = one_product(torch.ones(2, 300), torch.ones(200, 300), xs, ws, impl)
    columns = torch.tensor([128.0, 128.0, 44.0])
    want = (xs[:, None] * ws * columns).sum(-1)
    assert torch.equal(got, want[:, [0] * 128 + [1] * 72])


@impls
def test_e4m3_is_promoted_block_by_block_in_ascending_k(impl):
    """2^24 + 1 + 1 loses both ones in this order and neither in the other."""
    x, w = torch.zeros(1, 384), torch.zeros(1, 384)
    x[0, [0, 128, 256]] = w[0, [0, 128, 256]] = 1.0
    scales = torch.tensor([[2.0**24, 1.0, 1.0]])
    assert one_product(x, w, scales, torch.ones(1, 3), impl).item() == 2.0**24
    assert one_product(x, w, scales.flip(1), torch.ones(1, 3), impl).item() == 2.0**24 + 2
    # The two scales are multiplied first: 3 * (a * b) is not (3 * a) * b here.
    a, b = torch.tensor(1 + 2.0**-23), torch.tensor(1 + 2.0**-22)
    x, w = torch.zeros(1, 128), torch.zeros(1, 128)
    x[0, 0], w[0, 0] = 3.0, 1.0
    got = one_product(x, w, a.view(1, 1), b.view(1, 1), impl).item()
    first, last = float(3 * (a * b)), float((3 * a) * b)
    assert first != last and got == first


@impls
def test_e4m3_is_near_the_dequantised_product(impl):
    x, weight, counts = torch.randn(20, 256), torch.randn(3, 160, 256), (7, 0, 13)
    code, scale = quantise_rows("e4m3_amax_linear", x)
    w, ws = quantise_blocks("e4m3_amax_linear", weight)
    got = grouped_gemm(code, groups_of(counts), [*w], x_scale=scale, weight_scale=[*ws], impl=impl)
    assert got.dtype == torch.bfloat16
    want = by_hand(dequantise_rows(code, scale).double(), counts, dequantise_blocks(w, ws).double())
    assert (got - want).abs().max() <= 2**-8 * want.abs().max()  # rounding to bf16: half an ulp


@impls
def test_e4m3_padding_may_hold_anything(impl):
    groups = groups_of((3, 2), align=4, tail=1)
    code, scale = torch.full((9, 128), torch.nan).to(E4M3), torch.full((9, 1), torch.nan)
    live = groups.token.ge(0) & (torch.arange(9) < 8)
    code[live], scale[live] = torch.ones(5, 128).to(E4M3), 1.0
    got = grouped_gemm(code, groups, torch.ones(2, 16, 128).to(E4M3), x_scale=scale, weight_scale=torch.ones(2, 1, 1),
                       impl=impl)  # fmt: skip
    assert torch.equal(got.float(), torch.where(live, 128.0, 0.0)[:, None].expand(9, 16))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 3), st.integers(0, 5), st.integers(0, 33),
       st.integers(1, 20))  # fmt: skip
def test_any_grouping(counts, align, tail, depth, width):
    groups = groups_of(counts, align=align, tail=tail)
    x, weight = whole(len(groups.token), depth), whole(len(counts), width, depth)
    starts = groups.offsets[:-1].tolist()
    want = by_hand(x, counts, weight, starts) if counts else torch.zeros(tail, width)
    for impl in IMPLS:
        assert torch.equal(grouped_gemm(x, groups, weight, impl=impl), want)


def test_what_is_refused():
    x, weight, groups = torch.randn(5, 8), torch.randn(2, 16, 8), groups_of((2, 3))
    code, codes = x.to(E4M3), weight.to(E4M3)
    for message, change in {
        r"x has shape \(5,\)": {"x": x[:, 0]},
        "x is torch.int32": {"x": x.int()},
        "groups.token has shape .* N = 4": {"x": x[:4]},
        "groups is NoneType": {"groups": None},
        r"weight has shape .* E = 2": {"weight": weight[:1]},
        r"weight has shape .* K = 8": {"weight": weight[..., :7]},
        "weight is torch.bfloat16": {"weight": weight.bfloat16()},
        "weight is a list of 3": {"weight": [weight[0]] * 3},
        r"weight\[1\] has shape .* M = 16": {"weight": [weight[0], weight[1, :9]]},
        "weight is an empty list": {"weight": []},
        "weight is int": {"weight": 3},
        "x_scale is None, x is torch.float8_e4m3fn": {"x": code, "weight": codes},
        "x_scale is given, x is not": {"x_scale": torch.ones(5, 1)},
        "weight_scale is None": {"x": code, "weight": codes, "x_scale": torch.ones(5, 1)},
        "x_scale has shape .* Kb = 1": {"x": code, "weight": codes, "x_scale": torch.ones(5, 2),
                                        "weight_scale": torch.ones(2, 1, 1)},
        "weight_scale has shape .* Mb = 1": {"x": code, "weight": codes, "x_scale": torch.ones(5, 1),
                                             "weight_scale": torch.ones(2, 2, 1)},
        "dtype is torch.int8": {"dtype": torch.int8},
        "out: out is": {"out": torch.empty(5, 15)},
        "requires grad": {"x": x.clone().requires_grad_()},
        "an input requires grad": {"weight": [w.clone().requires_grad_() for w in weight]},
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            grouped_gemm(**{"x": x, "groups": groups, "weight": weight, **change})


def test_checked_looks_at_scales_of_rows_that_are_read():
    groups = groups_of((2,), tail=1)
    code, scale = torch.ones(3, 8).to(E4M3), torch.tensor([[1.0], [1.0], [torch.nan]])
    arguments = {"weight": torch.ones(1, 16, 8).to(E4M3), "weight_scale": torch.ones(1, 1, 1)}
    with checked():
        grouped_gemm(code, groups, x_scale=scale, **arguments)
        for bad in (torch.nan, torch.inf, 0.0, -1.0):
            scale[0] = bad
            with pytest.raises(ValueError, match="x_scale holds"):
                grouped_gemm(code, groups, x_scale=scale, **arguments)
