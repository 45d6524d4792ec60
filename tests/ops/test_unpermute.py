"""Laws of unpermute: the way back, its sums bit for bit, and what permute and unpermute are together."""

import pytest
import torch
from harness import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops import run
from tilesieve.ops.combine.op import combine
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.ops.permute.op import permute
from tilesieve.ops.unpermute import cpu
from tilesieve.ops.unpermute.op import unpermute
from tilesieve.types import Groups, Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
HALVES = pytest.mark.parametrize("of", [torch.bfloat16, torch.float16])
LAYOUTS = ({}, {"align": 4}, {"align": 4, "reserve": "count_plus_one"}, {"capacity": 64})


def route(index, experts, **more):
    index = torch.as_tensor(index, dtype=torch.int32)
    count = torch.full(index.shape[:1], index.shape[1], dtype=torch.int32)
    return group_rows(Selection(index, count, None, "expert"), experts=experts, tile=16, **more)


def drawn(tokens, experts, picks, seed=0):
    return torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :picks].int()


@IMPLS
def test_by_hand(impl):
    groups = route([[2, 0], [0, -1]], 3)
    rows = torch.tensor([[1.0], [10.0], [100.0], [torch.nan]])  # expert 0: tokens 0 and 1; expert 2: token 0
    weight = torch.tensor([[2.0, 3.0], [5.0, torch.nan]])
    assert unpermute(rows, groups, weight, impl=impl).tolist() == [[203], [50]]
    assert unpermute(rows, groups, impl=impl).tolist() == [[101], [10]]


@IMPLS
def test_products_and_sums_are_rounded_one_by_one_in_ascending_choice(impl):
    """Numbers whose sum depends on its order and on a fused product; combine adds alike."""
    groups = route([[3, 0, 1]], 4)
    rows = torch.empty(3, 1)
    rows[groups.row[0].long(), 0] = torch.tensor([1.0, 2.0**24, -(2.0**24)])
    assert unpermute(rows, groups, impl=impl).item() == 0  # (1 + 2^24) - 2^24
    rows[groups.row[0].long(), 0] = torch.tensor([2.0**24, -(2.0**24), 1.0])
    assert unpermute(rows, groups, impl=impl).item() == 1
    pair = route([[0, 1]], 2)
    third = torch.tensor([[1 / 3], [-1.0]])
    weight = torch.tensor([[3.0, 1.0]])  # 3 * fp32(1/3) rounds to 1; fused it would leave 2^-25
    assert unpermute(third, pair, weight, impl=impl).item() == 0
    many = route(drawn(70, 16, 8), 16, align=4)
    rows, weight = torch.randn(len(many.token), 19), torch.rand(70, 8)
    assert same_bits(unpermute(rows, many, weight, impl=impl), combine(rows, many, weight))


@IMPLS
def test_a_missing_pick_does_not_count_whatever_it_weighs(impl):
    groups = route([[0, -1, 5], [-1, -1, -1]], 3)
    rows, weight = torch.full((6, 4), torch.nan), torch.full((2, 3), torch.nan)
    rows[0], weight[0, 0] = 3.0, 2.0
    got = unpermute(rows, groups, weight, impl=impl)
    assert got[0].eq(6).all() and same_bits(got[1], torch.zeros(4))


@IMPLS
def test_rows_past_the_end_and_outside_are_not_read(impl):
    groups = route([[0, 1], [1, 0]], 2)
    rows = torch.randn(4, 3)
    want = unpermute(rows, groups, impl=impl)
    for place in (4, 2**31 - 1, -(2**31), -2):
        row = torch.cat([groups.row, torch.full((1, 2), place, dtype=torch.int32)])
        spoilt = Groups(groups.token, groups.choice, groups.offsets, groups.tiles, 4, row)
        got = unpermute(rows, spoilt, impl=impl)
        assert same_bits(got[:2], want) and got[2].eq(0).all()
    ended = Groups(groups.token, groups.choice, groups.offsets.clamp(max=3), groups.tiles, 4, groups.row)
    rows[3] = torch.nan
    assert unpermute(rows, ended, impl=impl).isfinite().all()
    assert unpermute(rows[:0], groups, impl=impl).eq(0).all()


@IMPLS
@pytest.mark.parametrize("more", LAYOUTS)
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16])
def test_there_and_back_is_k_x(impl, more, of):
    """k x rounded once: of 16-bit rows for every k (fp32 sums of them are exact), of fp32 rows for k <= 3, where
    at most one sum rounds. Beyond that each further sum may round."""
    for k in (1, 2, 3, 4, 5, 7, 8):
        x = torch.randn(37, 11).to(of)
        groups = route(drawn(37, 16, k, seed=k), 16, **more)
        back = unpermute(permute(x, groups, impl=impl), groups, impl=impl)
        if of != torch.float32 or k <= 3:
            assert same_bits(back, (k * x.double()).to(of))
        else:  # k - 2 roundings of at most half a unit each
            assert (back.double() - k * x.double()).abs().le((k - 2) * k * x.double().abs() * 2.0**-24).all()


@IMPLS
@pytest.mark.parametrize("k", [1, 2, 3, 6, 8])
@HALVES
def test_weights_that_sum_to_one_give_16_bit_rows_back(impl, k, of):
    """The errors of fp32 (2^-24 each) are far from half a unit of the dtype (2^-12 and up)."""
    groups = route(drawn(64, 16, k, seed=k), 16, align=4)
    x = torch.randn(64, 33).to(of)
    x[x.abs() < 2.0**-13] = 1.0  # fp16 subnormals have a coarser unit, which is as well, and their own law
    weight = torch.rand(64, k) + 0.01
    weight /= weight.sum(1, keepdim=True)
    assert same_bits(unpermute(permute(x, groups, impl=impl), groups, weight, impl=impl), x)


@IMPLS
def test_weights_that_sum_to_one_give_fp32_rows_back_where_no_sum_rounds(impl):
    """Halves, ones and zeros always; powers of two where the number has bits to spare; others nearly."""
    groups = route(drawn(40, 8, 4), 8)
    x = torch.randn(40, 7)

    def there_and_back(x, weight):
        return unpermute(permute(x, groups, impl=impl), groups, weight.expand(40, 4), impl=impl)

    for weight in ([0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0]):
        assert same_bits(there_and_back(x, torch.tensor([weight])), x)
    short = x.bfloat16().float()
    for weight in ([0.25] * 4, [0.5, 0.25, 0.125, 0.125]):
        assert same_bits(there_and_back(short, torch.tensor([weight])), short)
    back = there_and_back(x, torch.rand(40, 4).softmax(1))
    # 5e-7: four products, three sums and the weights' own sum, 2^-24 each; largest seen 2.3e-7.
    assert (back - x).abs().le(5e-7 * x.abs()).all()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_there_and_back_is_the_identity_of_what_was_picked(data):
    """Any ids, any layout: a token comes back as often as it has rows, and rows are as many as valid picks."""
    tokens, picks, experts = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 4)), data.draw(st.integers(0, 5))
    index = torch.tensor(
        [[data.draw(st.integers(-1, experts)) for _ in range(picks)] for _ in range(tokens)], dtype=torch.int32
    ).view(tokens, picks)
    groups = route(index, experts, **data.draw(st.sampled_from(LAYOUTS)))
    times = ((index >= 0) & (index < experts)).sum(1, keepdim=True)
    x = torch.randint(-999, 999, (tokens, 3)).float()  # whole numbers: every sum is exact
    for impl in ("reference", "cpu"):
        rows = permute(x, groups, impl=impl)
        assert int((groups.token >= 0).sum()) == int(times.sum())
        assert torch.equal(unpermute(rows, groups, impl=impl), times * x)
        weight = torch.randint(0, 5, (tokens, picks)).float()
        total = (weight * ((index >= 0) & (index < experts))).sum(1, keepdim=True)
        assert torch.equal(unpermute(rows, groups, weight, impl=impl), total * x)


def test_passes_do_not_show(monkeypatch):
    groups = route(drawn(50, 8, 3), 8)
    rows, weight = torch.randn(150, 9), torch.rand(50, 3)
    whole = unpermute(rows, groups, weight, impl="cpu")
    for tokens in (1, 7, 50):
        monkeypatch.setattr(cpu, "_TOKENS", tokens)
        assert same_bits(unpermute(rows, groups, weight, impl="cpu"), whole)


# The gradient -------------------------------------------------------------------------------------


@IMPLS
@pytest.mark.parametrize("kept", [None, 5, 0])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_gradient_is_that_of_numbers(impl, kept, weighted):
    groups = route([[2, 0], [0, 2], [-1, 1], [1, 9]], 3, align=2)
    rows = torch.randn(len(groups.token), 3, dtype=torch.float64)[:kept].clone().requires_grad_()
    weight = torch.rand(4, 2, dtype=torch.float64, requires_grad=True) if weighted else None
    inputs = (rows, weight) if weighted else (rows,)
    function = lambda *given: unpermute(given[0], groups, *given[1:], impl=impl)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@IMPLS
def test_each_gradient_alone(impl):
    """Of the rows only, of the weights only: the same numbers as of both."""
    groups = route(drawn(9, 4, 2), 4)
    rows, weight = torch.randn(18, 5), torch.rand(9, 2)
    both = [t.clone().requires_grad_() for t in (rows, weight)]
    unpermute(*both[:1], groups, both[1], impl=impl).square().sum().backward()
    one = rows.clone().requires_grad_()
    unpermute(one, groups, weight, impl=impl).square().sum().backward()
    other = weight.clone().requires_grad_()
    unpermute(rows, groups, other, impl=impl).square().sum().backward()
    assert same_bits(one.grad, both[0].grad) and same_bits(other.grad, both[1].grad)


@IMPLS
@HALVES
def test_the_gradient_against_autograd_of_plain_torch(impl, of):
    groups = route([[3, 1, 0], [-1, 2, 2], [0, 9, 3], [-1, -1, -1]], 4, align=4)
    rows = torch.randn(len(groups.token), 6).to(of)
    rows[groups.token < 0] = torch.nan
    mine = [rows.clone().requires_grad_(), torch.rand(4, 3).requires_grad_()]
    sent = torch.randn(4, 6).to(of)
    unpermute(mine[0], groups, mine[1], impl=impl).backward(sent)
    plain = [rows.double().nan_to_num(0).requires_grad_(), mine[1].detach().double().requires_grad_()]
    known = groups.row >= 0
    picked = plain[0][groups.row.clamp(min=0).long()] * known[..., None]
    (picked * plain[1][..., None]).sum(1).backward(sent.double())
    # One fp32 rounding of the product, one to the dtype: at most a unit apart from the fp64 truth.
    unit = 2.0**-8 if of == torch.bfloat16 else 2.0**-11
    assert (mine[0].grad.double() - plain[0].grad).abs().le(plain[0].grad.abs() * unit + 1e-7).all()
    assert mine[0].grad[groups.token < 0].eq(0).all()  # 0, not NaN: padding was not read
    assert torch.allclose(mine[1].grad.double(), plain[1].grad, rtol=1e-6, atol=1e-7)
    assert mine[1].grad[~known].eq(0).all()


@IMPLS
def test_a_nan_gradient_stays_with_its_token(impl):
    groups = route(drawn(6, 4, 2), 4)
    rows, weight = torch.randn(12, 3).requires_grad_(), torch.rand(6, 2).requires_grad_()
    sent = torch.ones(6, 3)
    sent[2] = torch.nan
    unpermute(rows, groups, weight, impl=impl).backward(sent)
    assert torch.equal(rows.grad.isnan().any(1), groups.token == 2)
    assert torch.equal(weight.grad.isnan().any(1), torch.arange(6) == 2)


def test_nothing_has_a_gradient_too():
    for tokens, picks, experts in ((0, 2, 3), (3, 0, 3), (3, 2, 0)):
        groups = route(torch.zeros(tokens, picks), experts)
        rows = torch.randn(len(groups.token), 4, requires_grad=True)
        weight = torch.rand(tokens, picks, requires_grad=True)
        unpermute(rows, groups, weight).sum().backward()
        assert rows.grad.shape == rows.shape and weight.grad.shape == weight.shape


# Wrong input ----------------------------------------------------------------------------------------


def test_wrong_input_is_named():
    groups = route([[0, 1], [1, 0]], 2)
    rows, weight = torch.randn(4, 3), torch.rand(2, 2)
    with pytest.raises(ValueError, match="groups.row is None; allowed: int32"):
        unpermute(rows, Groups(groups.token, groups.choice, groups.offsets, groups.tiles, 4))
    with pytest.raises(ValueError, match="rows has 5 rows; allowed: at most the 4 of groups"):
        unpermute(torch.randn(5, 3), groups)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 3\).*K = 2"):
        unpermute(rows, groups, torch.rand(2, 3))
    with pytest.raises(ValueError, match="weight is torch.float64; allowed: torch.float32"):
        unpermute(rows, groups, weight.double())
    with pytest.raises(ValueError, match="weight is torch.float32; allowed: torch.float64"):
        unpermute(rows.double(), groups, weight)
    with pytest.raises(ValueError, match="dtype is torch.int32"):
        unpermute(rows, groups, dtype=torch.int32)
    with pytest.raises(ValueError, match="rows is torch.int64"):
        unpermute(rows.long(), groups)
    with pytest.raises(ValueError, match="unpermute has no backward into out"):
        unpermute(rows.requires_grad_(), groups, out=torch.empty(2, 3))


def test_checked_looks_inside():
    groups = route([[0, 1], [1, 0]], 2)
    rows = torch.randn(4, 3)

    def spoilt(row):
        row = torch.tensor(row, dtype=torch.int32)
        return Groups(groups.token, groups.choice, groups.offsets, groups.tiles, 4, row)

    with run.checked():
        unpermute(rows, groups)
        unpermute(rows[:2], groups)  # permute kept two
        for bad in (4, -2):
            with pytest.raises(ValueError, match="groups.row is .* allowed: -1 to 3"):
                unpermute(rows, spoilt([[0, bad], [1, 2]]))
        with pytest.raises(ValueError, match="groups.row names the same row twice"):
            unpermute(rows, spoilt([[0, 1], [1, 2]]))
