"""The laws of swiglu_mlp."""

import math

import pytest
import torch
from harness import same_bits

from tilesieve.formats.fp8 import NAMES, quantise_blocks, quantise_rows
from tilesieve.ops.catalogue import cost
from tilesieve.ops.grouped_gemm.reference import product
from tilesieve.ops.run import checked
from tilesieve.ops.swiglu_mlp.layouts import from_interleaved, to_interleaved
from tilesieve.ops.swiglu_mlp.op import swiglu_mlp
from tilesieve.ops.swiglu_mlp.reference import swiglu

IMPLS = ("reference", "cpu")
impls = pytest.mark.parametrize("impl", IMPLS)


def silu(x):
    return x / (1 + math.exp(-x))


def one(gate, up, impl, limit=None):
    """One token, one column: the result is silu(gate) * up."""
    w13, one = torch.tensor([[gate], [up]]), torch.ones(1, 1)
    return swiglu_mlp(one, w13, one, limit=limit, impl=impl).item()


@impls
def test_by_hand(impl):
    """Gate rows come first: 2 * 3 the other way round is another number."""
    assert one(2.0, 3.0, impl) == pytest.approx(3 * silu(2), rel=1e-6)
    assert one(3.0, 2.0, impl) == pytest.approx(2 * silu(3), rel=1e-6)
    assert one(-1.0, 5.0, impl) == pytest.approx(5 * silu(-1), rel=1e-6)
    # Two gates, two ups, a down that tells them apart, a token per column of x.
    x, w13 = torch.eye(2), torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8]])
    w2 = torch.tensor([[1.0, 0], [0, 10], [1, 1]])[:2]
    want = [[silu(1) * 5, silu(3) * 7 * 10], [silu(2) * 6, silu(4) * 8 * 10]]
    assert torch.allclose(swiglu_mlp(x, w13, w2, impl=impl), torch.tensor(want), rtol=1e-6)


@impls
def test_the_clamp_by_hand(impl):
    """gate is clamped above only, up on both sides, and before silu."""
    assert one(10.0, 1.0, impl, limit=7) == pytest.approx(silu(7), rel=1e-6)
    assert one(-10.0, 1.0, impl, limit=7) == pytest.approx(silu(-10), rel=1e-5)
    assert one(1.0, 9.0, impl, limit=7) == pytest.approx(7 * silu(1), rel=1e-6)
    assert one(1.0, -9.0, impl, limit=7) == pytest.approx(-7 * silu(1), rel=1e-6)
    assert one(6.5, -6.5, impl, limit=7.0) == one(6.5, -6.5, impl)
    assert one(0.5, 0.25, impl, limit=0.5) == pytest.approx(0.25 * silu(0.5), rel=1e-6)  # not silu, then clamp
    assert math.isnan(one(math.nan, 1.0, impl, limit=7)) and math.isnan(one(1.0, math.nan, impl, limit=7))


@impls
def test_far_gates(impl):
    assert one(-200.0, 1.0, impl) == 0.0
    assert one(200.0, 1.0, impl) == 200.0


@impls
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_rounded_and_what_is_not(impl, dtype):
    """gate and up stay fp32; their product is rounded to x's dtype, once."""
    x, w13, w2 = (torch.randn(s).to(dtype) for s in ((9, 64), (64, 64), (16, 32)))
    x, w13, w2 = x[:, :16], w13[:, :16], w2
    gate, up = product(x, w13).chunk(2, 1)
    h = swiglu(gate, up, None)
    want = product(h.to(dtype), w2)
    got = swiglu_mlp(x, w13, w2, dtype=torch.float32, impl=impl)
    near = (got - want).abs().max() / want.abs().max()
    for other in (product(h, w2), product(swiglu(gate.to(dtype).float(), up.to(dtype).float(), None).to(dtype), w2)):
        assert near < 0.1 * (other - want).abs().max() / want.abs().max()


@pytest.mark.parametrize(("width", "inner"), [(64, 48), (37, 19), (16, 200)])
def test_a_token_has_the_same_bits_in_any_batch(width, inner):
    x, w13, w2 = torch.randn(300, width), torch.randn(2 * inner, width), torch.randn(width, inner)
    row = swiglu_mlp(x[7:8], w13, w2)
    for tokens in (8, 12, 30, 33, 65, 129, 300):
        assert same_bits(swiglu_mlp(x[:tokens], w13, w2)[7:8], row)
    x[6] = torch.nan
    got = swiglu_mlp(x, w13, w2)
    assert same_bits(got[7:8], row) and bool(got[6].isnan().all()) and int(got.isnan().any(-1).sum()) == 1


def coded(quantiser, x, w13, w2):
    code, x_scale = quantise_rows(quantiser, x)
    (c13, w13_scale), (c2, w2_scale) = quantise_blocks(quantiser, w13), quantise_blocks(quantiser, w2)
    scales = {"x_scale": x_scale, "w13_scale": w13_scale, "w2_scale": w2_scale}
    return (code, c13, c2), scales


@pytest.mark.parametrize("quantiser", NAMES)
def test_e4m3_is_quantised_again_between_the_products(quantiser):
    tensors, scales = coded(quantiser, torch.randn(7, 200), torch.randn(2 * 144, 200), torch.randn(200, 144))
    code, w13, w2 = tensors
    gate, up = product(code, w13, scales["x_scale"], scales["w13_scale"]).chunk(2, 1)
    again, scale = quantise_rows(quantiser, swiglu(gate, up, 4.0))
    want = product(again, w2, scale, scales["w2_scale"])
    got = swiglu_mlp(*tensors, limit=4, quantiser=quantiser, dtype=torch.float32, impl="reference", **scales)
    assert same_bits(got, want)
    # fp32 sums in another order can move a code by a step: seen none in these.
    fast = swiglu_mlp(*tensors, limit=4, quantiser=quantiser, dtype=torch.float32, impl="cpu", **scales)
    assert (fast - want).abs().max() <= 2**-8 * want.abs().max()
    others = [swiglu_mlp(*tensors, limit=4, quantiser=n, dtype=torch.float32, impl="reference", **scales)
              for n in NAMES]  # fmt: skip
    pow2 = quantiser.endswith("pow2")
    assert sum(same_bits(o, got) for o in others) == sum(n.endswith("pow2") == pow2 for n in NAMES)


def test_interleaved_rows():
    """gate 0, up 0, gate 1, up 1 -> gate 0, gate 1, up 0, up 1; stacks too; and back."""
    w = torch.arange(6.0)[:, None] * torch.ones(2)
    assert from_interleaved(w)[:, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert to_interleaved(from_interleaved(w)).equal(w) and from_interleaved(to_interleaved(w)).equal(w)
    stack = torch.randn(3, 8, 5)
    assert from_interleaved(stack).equal(torch.stack([from_interleaved(s) for s in stack]))
    assert from_interleaved(stack).is_contiguous()
    x, w2 = torch.randn(4, 5), torch.randn(5, 4)
    gate, up = x @ stack[0][::2].T, x @ stack[0][1::2].T
    got = swiglu_mlp(x, from_interleaved(stack[0]), w2)
    assert torch.allclose(got, torch.nn.functional.silu(gate) * up @ w2.T, atol=1e-5)
    for wrong in (stack[:, :7], torch.randn(8), stack.to(torch.float8_e4m3fn)):
        for convert in (from_interleaved, to_interleaved):
            with pytest.raises(ValueError, match="w13 is"):
                convert(wrong)


def test_the_cost_reads_x_once():
    one = cost("swiglu_mlp")(tokens=7, width=32, inner=48)
    assert one.bytes_min == 2 * (3 * 32 * 48 + 2 * 7 * 32)
    assert one.bytes_moved - one.bytes_min == 2 * 2 * 7 * 48
    assert one.flops == 6 * 7 * 32 * 48 + 4 * 7 * 48
    assert one.intensity > 0 and one.launches == 2


def test_the_cost_is_that_of_one_expert():
    for scaled in (0, 1):
        one = cost("swiglu_mlp")(tokens=9, width=200, inner=136, scaled=scaled)
        many = cost("experts")(tokens=9, width=200, inner=136, experts=1, rows=9, hit=1, scaled=scaled)
        index = 4 * (9 + 2)
        assert one.flops == many.flops
        assert one.bytes_min == many.bytes_min - index and one.bytes_moved == many.bytes_moved - index


def test_what_is_refused():
    x, w13, w2 = torch.randn(3, 8), torch.randn(12, 8), torch.randn(8, 6)
    codes = {n: t.to(torch.float8_e4m3fn) for n, t in (("x", x), ("w13", w13), ("w2", w2))}
    scales = {"x_scale": torch.ones(3, 1), "w13_scale": torch.ones(1, 1), "w2_scale": torch.ones(1, 1)}
    for message, change in {
        "x is torch.float64": {"x": x.double()},
        "w13 has shape .* D = 8": {"w13": w13[:, :7]},
        "w13 has 11 rows": {"w13": w13[:11]},
        "w13 is torch.bfloat16": {"w13": w13.bfloat16()},
        "w2 has shape .* I = 6": {"w2": w2[:, :5]},
        "w2 has shape .* D = 8": {"w2": w2[:7]},
        "limit is -1": {"limit": -1.0},
        "limit is 0": {"limit": 0},
        "limit is nan": {"limit": math.nan},
        "limit is '7'": {"limit": "7"},
        "quantiser is given, x is not": {"quantiser": NAMES[0]},
        "x_scale is None, x is": codes,
        "quantiser is None, x is": codes | scales,
        "quantiser is 'e4m3'": codes | scales | {"quantiser": "e4m3"},
        "w2_scale has shape .* Ib = 1": codes | scales | {"quantiser": NAMES[0], "w2_scale": torch.ones(1, 2)},
        "dtype is torch.float64": {"dtype": torch.float64},
        "requires grad": {"w2": w2.clone().requires_grad_()},
    }.items():
        with pytest.raises(ValueError, match=message):
            swiglu_mlp(**{"x": x, "w13": w13, "w2": w2, **change})
    scales["w2_scale"][:] = 0
    with checked(), pytest.raises(ValueError, match="w2_scale holds 0"):
        swiglu_mlp(**codes, **scales, quantiser=NAMES[0])
