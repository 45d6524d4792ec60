"""A MoE layer, end to end: against a plain loop over tokens in fp64, and the laws of the whole."""

import pytest
import torch

from tilesieve.formats.fp8 import dequantise_blocks, dequantise_rows, quantise_blocks, quantise_rows
from tilesieve.layers.moe import MLP, MoE, Routing, moe, score
from tilesieve.ops.combine.op import combine
from tilesieve.ops.experts.op import WEIGHT_AT
from tilesieve.ops.gate.op import gate
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.ops.permute.op import permute

T, E, D, I = 37, 8, 48, 24  # noqa: E741
ORDERS = ("choice", "expert")
# Kinds of routing that models use: plain softmax, grouped with a bias, sqrt-softplus without groups.
ROUTINGS = {
    "softmax": Routing(k=2, score="softmax", renormalise=False),
    "grouped": Routing(k=3, groups=4, top_groups=2, scale=2.5),
    "sqrt_softplus": Routing(k=4, score="sqrt_softplus", scale=1.5),
}


def layer(seed=0, dtype=torch.float32, shared=True, bias=True, limit=None):
    g = torch.Generator().manual_seed(seed)

    def mlp(*stack):
        w13 = torch.randn(*stack, 2 * I, D, generator=g) * D**-0.5
        w2 = torch.randn(*stack, D, I, generator=g) * I**-0.5
        return MLP(w13.to(dtype), w2.to(dtype))

    router = torch.randn(E, D, generator=g) * D**-0.5
    routed, one = mlp(E), mlp()
    b = torch.randn(E, generator=g) * 0.2
    return MoE(router, routed, one if shared else None, b if bias else None, None, limit)


def tokens(count=T, seed=1):
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed)) * 2


def mlp_by_hand(x, w13, w2, limit, quantiser=None):
    gate_I, up_I = (w13.double() @ x.double()).chunk(2)
    if limit is not None:
        gate_I, up_I = gate_I.clamp(max=limit), up_I.clamp(-limit, limit)
    h_I = gate_I * torch.sigmoid(gate_I) * up_I
    if quantiser is not None:
        h_I = dequantise_rows(*quantise_rows(quantiser, h_I.float())).double()
    return w2.double() @ h_I


def by_hand(x, of, routing, mask=None, ids=None):
    """One token after the other, in fp64, without any of our operators."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(len(x)):
        logit = of.router.double() @ x[t].double()
        if routing.score == "softmax":
            raw = logit.softmax(-1)
        elif routing.score == "sigmoid":
            raw = logit.sigmoid()
        else:
            raw = torch.nn.functional.softplus(logit).sqrt()
        ranked = raw + (0 if of.bias is None else of.bias.double())
        if routing.groups > 1:
            best = ranked.view(routing.groups, -1).topk(2 if of.bias is not None else 1).values.sum(-1)
            outside = best.argsort(descending=True)[routing.top_groups :]
            ranked.view(routing.groups, -1)[outside] = -torch.inf
        chosen = ranked.argsort(descending=True)[: routing.k].tolist() if ids is None else ids[t].tolist()
        chosen = [e for e in chosen if e >= 0]
        weight = raw[chosen]
        weight = routing.scale * (weight / weight.sum() if routing.renormalise and chosen else weight)
        if mask is None or mask[t]:
            for e, w in zip(chosen, weight, strict=True):
                out[t] += w * mlp_by_hand(x[t], of.routed.w13[e], of.routed.w2[e], of.limit)
        if of.shared is not None:
            out[t] += mlp_by_hand(x[t], of.shared.w13, of.shared.w2, of.limit)
    return out


def off(got, want):
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("weight_at", WEIGHT_AT)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ROUTINGS)
def test_it_is_a_plain_loop_over_tokens(kind, shared, weight_at):
    routing = ROUTINGS[kind]
    of = layer(shared=shared, bias=kind == "grouped", limit=0.5 if kind == "sqrt_softplus" else None)
    x = tokens()
    for order in ORDERS:
        got = moe(x, of, routing, weight_at=weight_at, order=order)
        assert off(got, by_hand(x, of, routing)) < 1e-6  # fp32 sums; largest seen 4.6e-7


def test_in_bf16():
    of, x = layer(dtype=torch.bfloat16), tokens().bfloat16()
    got = moe(x, of, ROUTINGS["grouped"])
    assert got.dtype == torch.bfloat16
    assert off(got, by_hand(x, of, ROUTINGS["grouped"])) < 2**-7  # what is between, rows and the sum are rounded


@pytest.mark.parametrize("quantiser", ["e4m3_amax_pow2", "e4m3_amax_linear"])
def test_in_e4m3(quantiser):
    """Against the loop over what the codes say, quantised again between the products."""
    plain, x, routing = layer(), tokens(), ROUTINGS["grouped"]
    coded, said = [], []
    for of in (plain.routed, plain.shared):
        (w13, s13), (w2, s2) = quantise_blocks(quantiser, of.w13), quantise_blocks(quantiser, of.w2)
        coded.append(MLP(w13, w2, s13, s2))
        said.append(MLP(dequantise_blocks(w13, s13), dequantise_blocks(w2, s2)))
    of = MoE(plain.router, coded[0], coded[1], plain.bias, quantiser)
    # The router reads x itself, the experts its codes: a loop whose routing is that of x.
    ids = gate(score(x, of.router), k=3, bias=of.bias, groups=4, top_groups=2)
    seen = dequantise_rows(*quantise_rows(quantiser, x))
    want = torch.stack([
        sum(2.5 * w.double() * mlp_by_hand(seen[t], said[0].w13[e], said[0].w2[e], None, quantiser)
            for e, w in zip(ids.index[t].tolist(), ids.weight[t], strict=True))
        + mlp_by_hand(seen[t], said[1].w13, said[1].w2, None, quantiser) for t in range(T)
    ])  # fmt: skip
    assert off(moe(x, of, routing), want) < 1e-6  # fp32 sums; a code on the other side of a rounding would show


def test_lists_of_experts():
    of = layer()
    apart = MoE(of.router, MLP(list(of.routed.w13), list(of.routed.w2)), of.shared, of.bias)
    assert torch.equal(moe(tokens(), apart, ROUTINGS["grouped"]), moe(tokens(), of, ROUTINGS["grouped"]))


@pytest.mark.parametrize("kind", ROUTINGS)
def test_a_token_alone_is_the_token_in_the_batch(kind):
    """Bit for bit, the routing too: the router's product is one of fixed shapes."""
    of, x = layer(bias=kind == "grouped"), tokens()
    whole = moe(x, of, ROUTINGS[kind])
    for t in range(0, T, 5):
        assert torch.equal(moe(x[t : t + 1], of, ROUTINGS[kind])[0], whole[t])
    assert torch.equal(moe(x[3:20], of, ROUTINGS[kind]), whole[3:20])


@pytest.mark.parametrize("weight_at", WEIGHT_AT)
def test_a_masked_token_gets_the_shared_expert_only(weight_at):
    of, x = layer(), tokens()
    mask = torch.rand(T, generator=torch.Generator().manual_seed(3)) < 0.5
    got = moe(x, of, ROUTINGS["grouped"], mask=mask, weight_at=weight_at)
    assert off(got, by_hand(x, of, ROUTINGS["grouped"], mask=mask)) < 1e-6
    nobody = moe(x, layer(shared=False), ROUTINGS["grouped"], mask=torch.zeros(T, dtype=torch.bool))
    assert bool((nobody == 0).all())


@pytest.mark.parametrize("weight_at", WEIGHT_AT)
def test_nan_in_a_padded_token_reaches_nobody(weight_at):
    of, x = layer(), tokens()
    mask = torch.ones(T, dtype=torch.bool)
    mask[[4, T - 1]] = False
    want = moe(x[mask], of, ROUTINGS["grouped"], weight_at=weight_at)
    x[~mask] = torch.nan
    got = moe(x, of, ROUTINGS["grouped"], mask=mask, weight_at=weight_at)
    assert torch.equal(got[mask], want)
    # Without a shared expert not even the padded token sees it.
    assert bool((moe(x, layer(shared=False), ROUTINGS["grouped"], mask=mask)[~mask] == 0).all())


def test_ids_from_elsewhere():
    """Hash-routed: the router only weighs, -1 is no expert, a row of -1 has the shared expert only."""
    of, x = layer(bias=False), tokens()
    ids = torch.rand(T, E, generator=torch.Generator().manual_seed(2)).argsort(1)[:, :3].int()
    ids[::3, 2], ids[1::5] = -1, -1
    got = moe(x, of, ROUTINGS["sqrt_softplus"], ids=ids)
    assert off(got, by_hand(x, of, ROUTINGS["sqrt_softplus"], ids=ids)) < 1e-6


def test_zero_tokens():
    assert moe(tokens(0), layer(), ROUTINGS["grouped"]).shape == (0, D)


@pytest.mark.parametrize("weight_at", WEIGHT_AT)
def test_one_expert_takes_all(weight_at):
    of, x = layer(bias=False), tokens(200)
    ids = torch.full((200, 1), 5, dtype=torch.int32)
    got = moe(x, of, ROUTINGS["sqrt_softplus"], ids=ids, weight_at=weight_at)
    assert off(got, by_hand(x, of, ROUTINGS["sqrt_softplus"], ids=ids)) < 1e-6


# Reversibility: rows ordered by expert and back ------------------------------------------------------


def routed(x, k, scale=1.0, seed=0):
    logits = torch.randn(len(x), E, generator=torch.Generator().manual_seed(seed))
    selection = gate(logits, k=k, scale=scale)
    return selection, group_rows(selection, experts=E)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_there_and_back_is_a_loop_in_the_stated_order(k, order):
    """Rows permuted, weighed and summed, against no permuting at all: the same bits, for any k, if the loop adds
    in the stated order."""
    x = tokens()
    selection, groups = routed(x, k)
    got = combine(permute(x, groups), groups, selection.weight, order=order)
    for t in range(T):
        picks = list(zip(selection.index[t].tolist(), selection.weight[t], strict=True))
        picks = picks if order == "choice" else sorted(picks, key=lambda pick: pick[0])
        total = torch.zeros(D)
        for _, w in picks:
            total = total + w * x[t]
        assert torch.equal(got[t], total)


def test_any_order_will_do_up_to_two_picks():
    """Two products add commutatively, so the orders have the same bits; three do not: hence "the stated order"."""
    x = tokens(400)
    for k in (1, 2, 3):
        selection, groups = routed(x, k)
        results = [combine(permute(x, groups), groups, selection.weight, order=order) for order in ORDERS]
        assert torch.equal(*results) == (k <= 2)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_identity_experts_give_scale_times_x(k, order):
    """Exactly where the weights are exact parts of scale and no sum rounds: equal logits, k and scale powers
    of two, x of few bits. Else to rounding."""
    x = torch.randint(-99, 99, (T, D)).float()
    even = gate(torch.zeros(T, E), k=k, scale=2.0)
    groups = group_rows(even, experts=E)
    assert torch.equal(combine(permute(x, groups), groups, even.weight, order=order), 2 * x)
    x = tokens()
    selection, groups = routed(x, k, scale=2.5)
    got = combine(permute(x, groups), groups, selection.weight, order=order)
    assert off(got, 2.5 * x.double()) < 4e-7  # k products and sums, half an ulp of 6e-8 each


@pytest.mark.parametrize("kind", ROUTINGS)
def test_it_compiles_as_one_graph(kind):
    of, x = layer(bias=kind == "grouped"), tokens()
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: moe(given, of, ROUTINGS[kind]), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), moe(x, of, ROUTINGS[kind]))
