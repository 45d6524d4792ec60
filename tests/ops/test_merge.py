"""Laws of merge: parts of an attention are the attention; what saw nothing adds nothing."""

import math

import pytest
import torch
from attention_inputs import exact, ints, near, normal
from harness import same_bits

from tilesieve.ops import catalogue, run
from tilesieve.ops.merge import lse as convert
from tilesieve.ops.merge.op import merge
from tilesieve.types import Partial

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def attention(q, key, value, sink=None):
    rows = [exact(q[r], key, value, 1.0, sink) for r in range(len(q))]
    return Partial(torch.stack([out for out, _ in rows]), torch.stack([lse for _, lse in rows]))


def fp32(partial):
    return Partial(partial.out.float(), partial.lse.float())


@IMPLS
@pytest.mark.parametrize("cuts", [[5], [1, 2, 3], [12, 13], list(range(1, 20))])
def test_parts_of_an_attention_are_the_attention(impl, cuts):
    q, key, value, sink = normal(3, 4, 8), normal(20, 2, 8, seed=1), normal(20, 2, 5, seed=2), normal(4, seed=3)
    pieces = zip([0, *cuts], [*cuts, 20], strict=True)
    parts = [fp32(attention(q, key[a:b], value[a:b])) for a, b in pieces]
    for given in (None, sink):
        want = attention(q, key, value, given)
        assert near(merge(parts, sink=given, impl=impl), want.out, want.lse, 2e-6)


@IMPLS
def test_one_part_is_itself_bit_for_bit(impl):
    part = Partial(normal(5, 3, 8), normal(5, 3, seed=1) * 300)
    got = merge([part], impl=impl)
    assert same_bits(got.out, part.out) and same_bits(got.lse, part.lse)
    nothing = Partial(torch.full((5, 3, 8), torch.nan), torch.full((5, 3), -torch.inf))
    for parts in ([part, nothing], [nothing, part]):
        got = merge(parts, impl=impl)
        assert same_bits(got.out, part.out) and same_bits(got.lse, part.lse)


@IMPLS
def test_a_part_of_length_zero_is_ignored_whatever_it_holds(impl):
    good = [Partial(normal(4, 2, 8, seed=n), normal(4, 2, seed=9 + n)) for n in range(2)]
    want = merge(good, impl=impl)
    for rubbish in (torch.nan, torch.inf, -torch.inf, 7e4):
        bad = Partial(torch.full((4, 2, 8), rubbish), torch.full((4, 2), rubbish))
        lengths = torch.stack([ints(9, 9, 9, 9), ints(0, -1, 0, 0), ints(1, 1, 1, 1)])
        with run.checked():
            got = merge([good[0], bad, good[1]], lengths=lengths, impl=impl)
        assert same_bits(got.out, want.out) and same_bits(got.lse, want.lse)
    # By row: row 0 has its first part only, row 1 its second, row 2 none.
    got = merge(good, lengths=torch.stack([ints(3, 0, 0, 2), ints(0, 3, 0, 2)]), impl=impl)
    assert same_bits(got.out[0], good[0].out[0]) and same_bits(got.out[1], good[1].out[1])
    assert got.out[2].eq(0).all() and got.lse[2].eq(-torch.inf).all()
    assert same_bits(got.out[3], want.out[3])


@IMPLS
def test_all_parts_empty(impl):
    parts = [Partial(torch.full((2, 3, 4), torch.nan), torch.full((2, 3), -torch.inf)) for _ in range(3)]
    for sink in (None, torch.tensor([0.0, -torch.inf, torch.inf])):
        got = merge(parts, sink=sink, impl=impl)
        assert got.out.eq(0).all() and got.lse.eq(-torch.inf).all()


@IMPLS
def test_far_apart_and_out_of_reach(impl):
    """Weights by difference: exp of any of these alone is 0 or inf in fp32."""
    for base in (-6e4, 0.0, 6e4):
        parts = [Partial(torch.full((1, 1, 2), v), torch.tensor([[base + d]])) for v, d in ((1.0, 0.0), (5.0, 1.0))]
        parts.append(Partial(torch.full((1, 1, 2), 1e30), torch.tensor([[base - 1000.0]])))
        got = merge(parts, impl=impl)
        assert got.out[0, 0].tolist() == pytest.approx([(1 + 5 * math.e) / (1 + math.e)] * 2, rel=1e-6)
        assert got.lse.item() == pytest.approx(base + math.log(1 + math.e), abs=0.004 if base else 1e-6)


@IMPLS
def test_a_nan_part_shows_in_its_row_and_head_only(impl):
    parts = [Partial(normal(3, 2, 4, seed=n), normal(3, 2, seed=5 + n)) for n in range(2)]
    clean = merge(parts, impl=impl)
    parts[1].out[1, 0, 2] = torch.nan
    parts[0].lse[2, 1] = torch.nan
    got = merge(parts, impl=impl)
    lost = torch.zeros(3, 2, 4, dtype=torch.bool)
    lost[1, 0, 2], lost[2, 1] = True, True
    assert torch.equal(got.out.isnan(), lost) and torch.equal(got.lse.isnan(), lost.all(-1))
    assert same_bits(got.out[~lost], clean.out[~lost])


@IMPLS
def test_the_order_is_the_callers(impl):
    """Another order may move the last bit, no more; the same order never does."""
    parts = [Partial(normal(6, 2, 8, seed=n), normal(6, 2, seed=20 + n)) for n in range(5)]
    got = merge(parts, impl=impl)
    assert same_bits(got.out, merge(list(parts), impl=impl).out)
    assert near(merge(parts[::-1], impl=impl), got.out.double(), got.lse.double(), 5e-7)


@IMPLS
def test_merging_in_two_steps(impl):
    parts = [Partial(normal(6, 2, 8, seed=n), normal(6, 2, seed=20 + n) * 5) for n in range(4)]
    steps = merge([merge(parts[:2], impl=impl), merge(parts[2:], impl=impl)], impl=impl)
    once = merge(parts, impl=impl)
    assert near(steps, once.out.double(), once.lse.double(), 1e-6)


@IMPLS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes(impl, dtype):
    parts = [Partial(normal(3, 2, 8, seed=n).to(dtype), normal(3, 2, seed=5 + n)) for n in range(2)]
    wide = merge(parts, impl=impl)
    assert wide.out.dtype == wide.lse.dtype == torch.float32
    assert same_bits(merge(parts, dtype=dtype, impl=impl).out, wide.out.to(dtype))
    into = Partial(torch.empty(3, 2, 8, dtype=dtype), torch.empty(3, 2))
    assert same_bits(merge(parts, out=into, impl=impl).out, wide.out.to(dtype))


@IMPLS
def test_the_result_may_be_a_part(impl):
    parts = [Partial(normal(3, 2, 8, seed=n), normal(3, 2, seed=5 + n)) for n in range(2)]
    want = merge(parts, impl=impl)
    got = merge(parts, out=parts[1], impl=impl)
    assert got.out is parts[1].out and same_bits(got.out, want.out) and same_bits(got.lse, want.lse)


def test_plus_infinity_is_another_convention():
    part = Partial(torch.zeros(2, 1, 4), torch.tensor([[torch.inf], [1.0]]))
    for impl in ("reference", "cpu"):
        got = merge([part, part], impl=impl)
        assert got.lse[0].item() == torch.inf and got.out[0].isnan().all() and got.out[1].eq(0).all()
    with run.checked(), pytest.raises(ValueError, match=r"parts\[0\].lse holds \+inf"):
        merge([part])
    told = Partial(part.out, convert.empty_as_minus_inf(part.lse))
    with run.checked():
        assert merge([told]).lse.flatten().tolist() == [-torch.inf, 1.0]


def test_converters():
    lse = torch.tensor([[0.0, 1.0, -torch.inf, -6e4, 80.0]])
    assert convert.to_base2(lse)[0, 1] == pytest.approx(1.4426950)
    assert torch.allclose(convert.from_base2(convert.to_base2(lse)), lse, rtol=1e-7)
    assert torch.equal(convert.empty_as_inf(lse)[0], torch.tensor([0.0, 1.0, torch.inf, -6e4, 80.0]))
    assert torch.equal(convert.empty_as_minus_inf(convert.empty_as_inf(lse)), lse)
    sink = torch.tensor([1.0, -torch.inf, 2.0, -6e4, 79.0])
    both = convert.with_sink(lse, sink)
    assert both[0].tolist() == pytest.approx([math.log(1 + math.e), 1.0, 2.0, -6e4 + math.log(2), 80.3132617], rel=1e-7)
    back = convert.without_sink(both, sink)
    assert back[0, 2] == -torch.inf and torch.allclose(back, lse, rtol=0, atol=1e-2)
    assert torch.allclose(back[:, [0, 1, 4]], lse[:, [0, 1, 4]], atol=2e-5)
    assert convert.without_sink(torch.tensor([1.0]), torch.tensor([1.0 + 1e-6])).item() == -torch.inf
    nothing = torch.tensor([-torch.inf])
    assert convert.with_sink(nothing, nothing).item() == convert.without_sink(nothing, nothing).item() == -torch.inf


def test_the_sink_included_convention_merges_to_the_same():
    """A library that counts the sink in every part's lse: taken out, merged, put back in."""
    q, key, value, sink = normal(2, 2, 8), normal(9, 2, 8, seed=1), normal(9, 2, 4, seed=2), torch.zeros(2)
    parts = []
    for a, b in ((0, 4), (4, 9)):
        plain = attention(q, key[a:b], value[a:b])
        theirs = convert.with_sink(plain.lse.float(), sink)
        parts.append(Partial(plain.out.float(), convert.without_sink(theirs, sink)))
    want = attention(q, key, value, sink)
    assert near(merge(parts, sink=sink), want.out, want.lse, 1e-5)


def test_cost_by_hand():
    """3 parts of 4 rows, of which 10 are read; 2 heads of 5 values in bf16, to fp32."""
    cost = catalogue.cost("merge")(parts=3, rows=4, heads=2, value_width=5, live=10, itemsize=2, lengths=1, sink=1)
    assert cost.flops == 2 * 10 * 2 * 5
    assert cost.bytes_min == 10 * 2 * (5 * 2 + 4) + 3 * 4 * 4 + 2 * 4 + 4 * 2 * (5 * 4 + 4)


BAD = [
    ({"parts": []}, "parts is empty"),
    ({"parts": [Partial(normal(2, 3, 4), normal(2, 4))]}, r"parts\[0\].lse has shape \(2, 4\)"),
    ({"parts": [Partial(normal(2, 3, 4), normal(2, 3)), Partial(normal(2, 3, 5), normal(2, 3))]}, r"parts\[1\].out"),
    ({"lengths": ints(1, 1)}, r"lengths has shape \(2,\); allowed: \[N, R\]"),
    ({"lengths": torch.ones(2, 2).int()}, r"lengths has shape \(2, 2\).*N = 1"),
    ({"sink": torch.zeros(2)}, r"sink has shape \(2,\)"),
    ({"dtype": torch.float64}, "dtype is torch.float64"),
]


@pytest.mark.parametrize(("change", "match"), BAD)
def test_wrong_input_is_named(change, match):
    with pytest.raises(ValueError, match=match):
        merge(**{"parts": [Partial(normal(2, 3, 4), normal(2, 3))], **change})
