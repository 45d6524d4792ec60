"""The laws of experts."""

from dataclasses import replace

import pytest
import torch
from harness import flat_call, same_bits
from moe_inputs import route

from tilesieve.formats.fp8 import NAMES, quantise_blocks, quantise_rows
from tilesieve.ops.catalogue import cost
from tilesieve.ops.combine.op import combine
from tilesieve.ops.experts.op import WEIGHT_AT, experts
from tilesieve.ops.grouped_gemm.op import grouped_gemm
from tilesieve.ops.swiglu_mlp.op import swiglu_mlp
from tilesieve.ops.swiglu_mlp.reference import swiglu
from tilesieve.ops.unpermute.op import unpermute

IMPLS = ("reference", "cpu")
impls = pytest.mark.parametrize("impl", IMPLS)
places = pytest.mark.parametrize("weight_at", WEIGHT_AT)


def layer(tokens=23, experts=5, picks=3, width=40, inner=24, dtype=torch.float32):
    """Distinct random experts per token, except expert 2, which nobody picks."""
    score = torch.rand(tokens, experts)
    score[:, 2] = -1
    groups = route(score.topk(picks).indices, experts)
    x = torch.randn(tokens, width).to(dtype)
    w13 = (torch.randn(experts, 2 * inner, width) * width**-0.5).to(dtype)
    w2 = (torch.randn(experts, width, inner) * inner**-0.5).to(dtype)
    return x, groups, w13, w2, torch.rand(tokens, picks)


def given(weight, weight_at):
    return {"weight": None if weight_at == "combine" else weight, "weight_at": weight_at}


@impls
@places
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_its_parts(impl, weight_at, dtype):
    """permute by hand, grouped_gemm, SwiGLU, grouped_gemm: the same bits."""
    x, groups, w13, w2, weight = layer(dtype=dtype)
    token, choice = groups.token.long(), groups.choice.long()
    gate, up = grouped_gemm(x[token], groups, w13, dtype=torch.float32, impl=impl).chunk(2, 1)
    h, w = swiglu(gate, up, 0.75), weight[token, choice][:, None]
    h = (h * w if weight_at == "before_down" else h).to(dtype)
    y = grouped_gemm(h, groups, w2, dtype=torch.float32, impl=impl)
    y = (y * w if weight_at == "down" else y).to(dtype)
    assert same_bits(experts(x, groups, w13, w2, limit=0.75, impl=impl, **given(weight, weight_at)), y)
    mixed = experts(x, groups, list(w13), w2, limit=0.75, impl=impl, **given(weight, weight_at))
    assert same_bits(mixed, y)


def coded(quantiser, x, w13, w2):
    (x, x_scale), (w13, w13_scale), (w2, w2_scale) = (
        quantise_rows(quantiser, x), quantise_blocks(quantiser, w13), quantise_blocks(quantiser, w2)
    )  # fmt: skip
    return {"x": x, "w13": w13, "w2": w2, "x_scale": x_scale, "w13_scale": w13_scale, "w2_scale": w2_scale,
            "quantiser": quantiser}  # fmt: skip


@impls
@places
@pytest.mark.parametrize("quantiser", NAMES)
def test_it_is_its_parts_in_e4m3(impl, weight_at, quantiser):
    x, groups, w13, w2, weight = layer(width=200, inner=144)
    a = coded(quantiser, x, w13, w2)
    token, choice = groups.token.long(), groups.choice.long()
    gate, up = grouped_gemm(a["x"].float()[token].to(a["x"].dtype), groups, a["w13"], x_scale=a["x_scale"][token],
                            weight_scale=a["w13_scale"], dtype=torch.float32, impl=impl).chunk(2, 1)  # fmt: skip
    h, w = swiglu(gate, up, None), weight[token, choice][:, None]
    code, scale = quantise_rows(quantiser, h * w if weight_at == "before_down" else h)
    y = grouped_gemm(code, groups, a["w2"], x_scale=scale, weight_scale=a["w2_scale"], dtype=torch.float32, impl=impl)
    y = (y * w if weight_at == "down" else y).bfloat16()
    assert same_bits(experts(groups=groups, impl=impl, **a, **given(weight, weight_at)), y)


@impls
def test_one_expert_is_the_dense_mlp(impl):
    x, _, w13, w2, _ = layer()
    groups = route(torch.full((23, 1), 1), 2)
    assert same_bits(experts(x, groups, w13[:2], w2[:2], impl=impl), swiglu_mlp(x, w13[1], w2[1], impl=impl))


def three_places(x, groups, w13, w2, weight, impl, dtype):
    """The tokens' sums, with the router weight in each of its places."""
    rows = {at: experts(x, groups, w13, w2, impl=impl, dtype=dtype, **given(weight, at)) for at in WEIGHT_AT}
    return [combine(rows["combine"], groups, weight), *(unpermute(rows[at], groups) for at in WEIGHT_AT[1:])]


@impls
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_places_of_the_weight_agree_exactly_where_they_must(impl, dtype):
    """A power of two moves no rounding: products, sums and roundings all scale with it."""
    x, groups, w13, w2, _ = layer(dtype=dtype)
    weight = 2.0 ** torch.randint(-3, 3, (23, 3)).float()
    first, *others = three_places(x, groups, w13, w2, weight, impl, dtype)
    assert all(same_bits(other, first) for other in others)


@impls
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-6)])
def test_the_places_of_the_weight_agree_within_rounding(impl, dtype, error):
    """bf16: h, the row and the sum are each rounded, to half an ulp or 2^-9 of themselves."""
    x, groups, w13, w2, weight = layer(dtype=dtype)
    first, *others = three_places(x, groups, w13, w2, weight, impl, dtype)
    for other in others:
        assert (other - first).abs().max() <= error * first.abs().max()
    # Rows of fp32: in the down product or at combine, the same product is rounded and the same sum.
    assert same_bits(others[0], first) == (dtype == torch.float32)
    assert not same_bits(others[1], first)


@impls
def test_e4m3_places_agree_exactly_for_powers_of_two(impl):
    x, groups, w13, w2, _ = layer(width=128, inner=128)
    a = coded("e4m3_amax_pow2", x, w13, w2)
    weight = 2.0 ** torch.randint(-2, 3, (23, 3)).float()
    rows = {at: experts(groups=groups, impl=impl, dtype=torch.float32, **a, **given(weight, at)) for at in WEIGHT_AT}
    want = rows["combine"] * weight[groups.token.long(), groups.choice.long()][:, None]
    assert same_bits(rows["down"], want) and same_bits(rows["before_down"], want)


@impls
@places
def test_skipped_rows_are_zero_and_nothing_of_them_is_read(impl, weight_at):
    """Labels of -1 between, at the end and throughout; NaN in the tokens, weights and matrices nobody uses."""
    x, groups, w13, w2, weight = layer()
    want = experts(x, groups, w13, w2, impl=impl, **given(weight, weight_at))
    # Three rows more per group, -1, and a tail past the end that names real tokens.
    pieces, offsets, places = [], [0], []
    for start, end in zip(groups.offsets.tolist(), groups.offsets.tolist()[1:], strict=False):
        pieces.append(torch.cat([torch.arange(start, end), torch.full((3,), -1)]))
        places += range(offsets[-1], offsets[-1] + end - start)
        offsets.append(offsets[-1] + end - start + 3)
    source = torch.cat([*pieces, torch.tensor([0, 1])])
    token = torch.where(source < 0, -1, groups.token[source.clamp(min=0)])
    choice = torch.where(source < 0, -1, groups.choice[source.clamp(min=0)])
    padded = replace(groups, token=token, choice=choice, offsets=torch.tensor(offsets, dtype=torch.int32), row=None)
    x = torch.cat([x, torch.full((1, 40), torch.nan)])  # a token no row names
    w13, w2, weight = w13.clone(), w2.clone(), torch.cat([weight, torch.full((1, 3), torch.nan)])
    w13[2] = w2[2] = torch.nan  # nobody picked it, though its group has padding
    out = torch.full((len(source), 40), 55.0)
    got = experts(x, padded, w13, w2, impl=impl, out=out, **given(weight, weight_at))
    assert got is out and same_bits(out[places], want)
    rest = torch.ones(len(source), dtype=torch.bool)
    rest[places] = False
    assert bool((out[rest] == 0).all())
    nothing = replace(padded, token=torch.full_like(token, -1))
    assert bool((experts(x, nothing, w13, w2, impl=impl, **given(weight, weight_at)) == 0).all())


@impls
@pytest.mark.parametrize("quantiser", [None, "e4m3_amax_pow2", "e4m3_amax_linear"])
def test_a_row_of_nan_reaches_no_other(impl, quantiser):
    """Three real rows and one of NaN, weight 0, quantised: the real ones are those of a batch of three."""
    x, _, w13, w2, _ = layer(tokens=4, width=128, inner=128)
    x[3] = torch.nan
    expert, weight = torch.tensor([[0, 1], [1, 0], [0, 3], [0, 1]]), torch.ones(4, 2)
    weight[3] = 0.0
    results = []
    for tokens in (4, 3):
        groups, mine = route(expert[:tokens], 5), weight[:tokens]
        a = {"x": x[:tokens], "w13": w13, "w2": w2}
        a = a if quantiser is None else coded(quantiser, **a)
        for at in WEIGHT_AT:
            rows = experts(groups=groups, impl=impl, **a, **given(mine, at))
            results.append(combine(rows, groups, mine if at == "combine" else torch.ones_like(mine))[:3])
    assert bool(torch.stack(results).isfinite().all())
    assert all(same_bits(a, b) for a, b in zip(results[:3], results[3:], strict=True))


@pytest.mark.parametrize("weight_at", ["combine", "before_down"])
def test_a_row_has_the_same_bits_whoever_else_is_there(weight_at):
    x, groups, w13, w2, weight = layer(tokens=400)
    rows = experts(x, groups, w13, w2, **given(weight, weight_at))
    for t in (0, 7, 399):
        mine = groups.token == t
        expert = torch.searchsorted(groups.offsets[1:].contiguous(), mine.nonzero()[:, 0].int(), right=True)
        alone = route(expert[None], 5)
        order = groups.choice[mine].long()
        got = experts(x[t : t + 1], alone, w13, w2, **given(weight[t : t + 1, order], weight_at))
        assert same_bits(got, rows[mine])


@impls
def test_zero_tokens_and_one_that_takes_all(impl):
    x, _, w13, w2, _ = layer(tokens=150)
    assert experts(x[:0], route(torch.zeros(0, 3), 5), w13, w2, impl=impl).shape == (0, 40)
    all_on_one = route(torch.full((150, 2), 4), 5)
    got = experts(x, all_on_one, w13, w2, impl=impl)
    once = swiglu_mlp(x, w13[4], w2[4], impl=impl)
    assert same_bits(got, once.repeat_interleave(2, 0))


def test_an_expert_without_rows_costs_nothing():
    """The bytes are those of the experts hit, whatever E is."""
    x, groups, w13, w2, _ = layer()
    sizes = flat_call("experts", {"x": x, "groups": groups, "w13": w13, "w2": w2}).sizes()
    assert sizes["hit"] == 4 and sizes["experts"] == 5 and sizes["tokens"] == 23 and sizes["rows"] == 69
    more = cost("experts")(**sizes | {"experts": 256})
    assert more.bytes_min - cost("experts")(**sizes).bytes_min == 4 * 251


@pytest.mark.parametrize("scaled", [0, 1])
@places
def test_fusion_keeps_the_flops_and_moves_less(scaled, weight_at):
    """What it fuses: permute, gate and up, SwiGLU, (quantising,) down, the multiply by the weight."""
    rows, tokens, width, inner, hit, size = 96, 32, 256, 192, 5, 1 if scaled else 2
    where = {"combine": 0, "down": width, "before_down": inner}[weight_at]
    fused = cost("experts")(tokens=tokens, width=width, inner=inner, experts=8, rows=rows, hit=hit, itemsize=size,
                            scaled=scaled, weighted=where)  # fmt: skip
    shape = {"experts": 8, "rows": rows, "hit": hit, "itemsize": size, "scaled": scaled}
    parts = (
        cost("permute")(tokens=tokens, width=width, rows=rows, itemsize=size)
        + cost("grouped_gemm")(depth=width, width=2 * inner, out_itemsize=4, **shape)
        + cost("grouped_gemm")(depth=inner, width=width, **shape)
    )
    between = rows * (4 * inner + scaled * (inner + 2) + where)  # exp, add, divide, multiply; x / scale, amax / 448
    assert fused.flops == parts.flops + between
    assert fused.bytes_min < fused.bytes_moved < parts.bytes_min


def test_what_is_refused():
    x, groups, w13, w2, weight = layer(tokens=4, experts=3, picks=2, width=8, inner=6)
    for message, change in {
        "x has shape": {"x": x[0]},
        "groups is Tensor": {"groups": x},
        "groups.choice has shape": {"groups": replace(groups, choice=groups.choice[:-1])},
        "w13 has shape .* E = 3": {"w13": w13[:2]},
        "w13 is a list of 2": {"w13": list(w13[:2])},
        "w13 has 11 rows": {"w13": w13[:, :11]},
        "w2 has shape .* I = 6": {"w2": w2[..., :5]},
        r"w2\[0\] has shape .* D = 8": {"w2": list(w2[:, :7])},
        "weight_at is 'up'": {"weight_at": "up"},
        "weight is given with weight_at = 'combine'": {"weight": weight},
        "weight is None with weight_at = 'down'": {"weight_at": "down"},
        "weight has shape .* T = 4": {"weight": weight[:3], "weight_at": "down"},
        "weight is torch.float64": {"weight": weight.double(), "weight_at": "down"},
        "limit is inf": {"limit": float("inf")},
        "w13_scale is given, x is not": {"w13_scale": torch.ones(3, 1, 1)},
        "x_scale is None, x is": {n: t.to(torch.float8_e4m3fn) for n, t in (("x", x), ("w13", w13), ("w2", w2))},
        "requires grad": {"x": x.clone().requires_grad_()},
    }.items():
        with pytest.raises(ValueError, match=message):
            experts(**{"x": x, "groups": groups, "w13": w13, "w2": w2, **change})
