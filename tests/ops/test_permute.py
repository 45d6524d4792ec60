"""Laws of permute: a token stands on the rows of its picks, nothing else does; keep and drop; its gradient."""

import pytest
import torch
from harness import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops import run
from tilesieve.ops.group_rows.layouts import expert_lists
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.ops.permute.op import permute
from tilesieve.ops.unpermute.op import unpermute
from tilesieve.types import Groups, Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
INDEX = [[2, 0], [0, 2], [0, 1]]


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def route(index, experts, **more):
    index = torch.as_tensor(index, dtype=torch.int32)
    count = torch.full(index.shape[:1], index.shape[1], dtype=torch.int32)
    return group_rows(Selection(index, count, None, "expert"), experts=experts, tile=16, **more)


def drawn(tokens, experts, picks, seed=0):
    return torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :picks].int()


def hand_made(token, end):
    """One expert whose rows are the tokens named, `end` of them in use."""
    token = ints(*token)
    return Groups(token, torch.zeros_like(token), ints(0, end), torch.empty(0, 3, dtype=torch.int32), len(token))


@IMPLS
def test_by_hand(impl):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    got = permute(x, route(INDEX, 4), impl=impl)
    assert got.tolist() == [[1, 2], [3, 4], [5, 6], [5, 6], [1, 2], [3, 4]]
    padded = permute(x, route(INDEX, 4, align=2), impl=impl)
    assert padded.tolist()[:8] == [[1, 2], [3, 4], [5, 6], [0, 0], [5, 6], [0, 0], [1, 2], [3, 4]]


@IMPLS
def test_padding_and_the_rows_past_the_end_are_zero_and_read_nothing(impl):
    """Also -0, NaN and infinity are copied as they are; a NaN token that nobody picked shows nowhere."""
    x = torch.tensor([[torch.nan], [-0.0], [torch.inf], [7.0]])
    got = permute(x, hand_made([1, -1, 2, -9, 4, 2**31 - 1, 0, 3], 6), impl=impl)
    assert same_bits(got, torch.tensor([[-0.0], [0.0], [torch.inf], [0.0], [0.0], [0.0], [0.0], [0.0]]))
    out = torch.full((8, 1), torch.nan)
    permute(x, hand_made([1, -1, 2, -9, 4, 2**31 - 1, 0, 3], 6), out=out, impl=impl)
    assert same_bits(out, got)


@IMPLS
def test_a_masked_token_of_nan_reaches_no_row(impl):
    """Three real tokens and one of NaN with ids -1: the real rows are those of a batch of three."""
    x = torch.randn(4, 8)
    x[3] = torch.nan
    four, three = route([*INDEX, [-1, -1]], 4), route(INDEX, 4)
    assert same_bits(permute(x, four, impl=impl)[:6], permute(x[:3], three, impl=impl))
    back = unpermute(permute(x, four, impl=impl), four, torch.rand(4, 2), impl=impl)
    assert back[3].eq(0).all() and back.isfinite().all()


@IMPLS
@pytest.mark.parametrize("align", [1, 4])
def test_keep_and_drop_cut_as_a_slice_does(impl, align):
    x, groups = torch.randn(3, 5), route(INDEX, 4, align=align)
    whole = permute(x, groups, impl=impl)
    n = len(whole)
    for k in (0, 1, 3, n - 1, n, n + 5):
        assert same_bits(permute(x, groups, keep=k, impl=impl), whole[:k])
        assert same_bits(permute(x, groups, drop=k, impl=impl), whole[: max(0, n - k)])
    out = torch.full((2, 5), torch.nan)
    assert permute(x, groups, keep=2, out=out, impl=impl) is out and same_bits(out, whole[:2])


def as_npu(tokens, indices, num_out_tokens=0):
    """What npu_moe_token_permute and unpermute state: argsort twice, then slice; 0 keeps all."""
    first = indices.flatten().argsort(stable=True)
    kept = first[:num_out_tokens] if num_out_tokens else first
    return tokens[kept // indices.shape[1]], first.argsort()


@IMPLS
@pytest.mark.parametrize("num", [0, 1, 9, 24, 40, -1, -9, -24, -40])
def test_num_out_tokens_of_the_npu_operator(impl, num):
    x, index = torch.randn(8, 4), drawn(8, 6, 3)
    groups = route(index, 6)
    named = {"keep": num} if num > 0 else {"drop": -num} if num < 0 else {}
    rows, place = as_npu(x, index, num)
    got = permute(x, groups, **named, impl=impl)
    assert same_bits(got, rows)
    assert torch.equal(groups.row.flatten().long(), place)
    # Its unpermute skips what was dropped.
    weight = torch.rand(8, 3)
    want = torch.zeros(8, 4)
    for t in range(8):
        for c in range(3):
            if place[3 * t + c] < len(rows):
                want[t] += weight[t, c] * rows[place[3 * t + c]]
    assert same_bits(unpermute(got, groups, weight, impl=impl), want)


@IMPLS
def test_the_padded_mode_of_the_npu_operator(impl):
    """Experts list their tokens: rows as listed; on the way back each is weighted by its expert."""
    lists = ints(2, 0, 1, 3, 0, 2).view(2, 3)
    x, groups = torch.randn(4, 5), expert_lists(lists, 4)
    rows = permute(x, groups, impl=impl)
    assert same_bits(rows, x[lists.flatten().long()])
    weight = torch.rand(4, 2)
    want = torch.zeros(4, 5)
    for e, listed in enumerate(lists.tolist()):
        for t in listed:
            want[t] += weight[t, e] * x[t]
    assert same_bits(unpermute(rows, groups, weight, impl=impl), want)


@IMPLS
def test_offsets_in_the_data_are_64_bits_wide(impl):
    """The last token begins 2^31 elements in; the storage is never touched elsewhere."""
    step = 1 << 30
    x = torch.empty(2 * step + 8, dtype=torch.bfloat16).as_strided((3, 8), (step, 1))
    x.copy_(torch.arange(24.0).view(3, 8))
    got = permute(x, hand_made([2, 0, 1], 3), impl=impl)
    assert got[:, 0].tolist() == [16, 0, 8]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_row_is_its_token(data):
    tokens, picks, experts = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 4)), data.draw(st.integers(0, 5))
    index = [[data.draw(st.integers(-1, experts)) for _ in range(picks)] for _ in range(tokens)]
    more = data.draw(st.sampled_from([{}, {"align": 4}, {"align": 4, "reserve": "count_plus_one"}, {"capacity": 40}]))
    groups = route(torch.tensor(index, dtype=torch.int32).view(tokens, picks), experts, **more)
    x = torch.arange(1.0, tokens + 1)[:, None]  # a row says which token it is; 0 is nobody
    for impl in ("reference", "cpu"):
        assert permute(x, groups, impl=impl)[:, 0].tolist() == (groups.token + 1).tolist()


# The gradient -------------------------------------------------------------------------------------


@IMPLS
@pytest.mark.parametrize("cut", [{}, {"keep": 7}, {"drop": 4}, {"keep": 0}])
def test_the_gradient_is_that_of_numbers(impl, cut):
    groups = route([[2, 0], [0, 2], [-1, 1], [1, 9]], 3, align=2)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    function = lambda x: permute(x, groups, **cut, impl=impl)  # noqa: E731
    assert torch.autograd.gradcheck(function, (x,), fast_mode=False)
    assert torch.autograd.gradgradcheck(function, (x,))


@IMPLS
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gradient_is_summed_in_ascending_choice_and_rounded_once(impl, of):
    groups = route(drawn(33, 8, 5), 8, align=4)
    x = torch.randn(33, 9, dtype=of, requires_grad=True)
    rows = permute(x, groups, impl=impl)
    sent = torch.randn(rows.shape).to(of)
    sent[groups.token < 0] = torch.nan  # gradients of padding are not read
    rows.backward(sent)
    want = torch.zeros(33, 9)
    for c in range(5):
        want += sent[groups.row[:, c].long()].float()
    assert same_bits(x.grad, want.to(of))
    assert same_bits(x.grad, unpermute(sent, groups))


def test_tokens_without_rows_have_gradient_zero():
    groups = route([[-1, -1], [0, 1]], 2)
    x = torch.randn(2, 3, requires_grad=True)
    permute(x, groups).sum().backward()
    assert x.grad.tolist() == [[0, 0, 0], [2, 2, 2]]
    empty = torch.randn(0, 3, requires_grad=True)
    permute(empty, route(torch.empty(0, 2), 2)).sum().backward()
    assert empty.grad.shape == (0, 3)


def test_the_gradient_passes_through_a_compiled_graph():
    groups, weight = route(drawn(9, 4, 2), 4), torch.rand(9, 2)
    torch._dynamo.reset()

    def there_and_back(x, weight):
        return unpermute(permute(x, groups).square(), groups, weight)

    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (there_and_back, compiled):
        x, w = torch.arange(27.0).view(9, 3).requires_grad_(), weight.clone().requires_grad_()
        function(x, w).sum().backward()
        grads.append((x.grad, w.grad))
    assert same_bits(grads[0][0], grads[1][0]) and same_bits(grads[0][1], grads[1][1])


def test_what_has_no_gradient_says_so():
    x, groups = torch.randn(3, 2, requires_grad=True), route(INDEX, 4)
    with pytest.raises(ValueError, match="permute has no backward into out"):
        permute(x, groups, out=torch.empty(6, 2))
    with pytest.raises(ValueError, match="groups.row is None and x requires grad"):
        permute(x, hand_made([0, 1, 2], 3))
    with torch.no_grad():
        assert not permute(x, hand_made([0, 1, 2], 3)).requires_grad
        assert permute(x, groups, out=torch.empty(6, 2)).shape == (6, 2)
    assert not permute(x.detach(), groups).requires_grad


# Wrong input ----------------------------------------------------------------------------------------


def test_wrong_input_is_named():
    x, groups = torch.randn(3, 2), route(INDEX, 4)
    with pytest.raises(ValueError, match="x is torch.int32"):
        permute(x.int(), groups)
    with pytest.raises(ValueError, match=r"x has shape \(2,\)"):
        permute(x[0], groups)
    with pytest.raises(ValueError, match="groups is Selection"):
        permute(x, Selection(ints(0)[None], ints(1), None, "expert"))
    with pytest.raises(ValueError, match="keep is 1 and drop is 2; allowed: one of them"):
        permute(x, groups, keep=1, drop=2)
    with pytest.raises(ValueError, match="keep is -1; allowed: an integer >= 0"):
        permute(x, groups, keep=-1)
    with pytest.raises(ValueError, match="drop is -1; allowed: an integer >= 0"):
        permute(x, groups, drop=-1)
    with pytest.raises(ValueError, match=r"groups.row has shape \(3, 2\).*T = 2"):
        permute(x[:2], groups)
    with pytest.raises(ValueError, match="groups.offsets is empty"):
        permute(x, Groups(ints(), ints(), ints(), groups.tiles, 0))


def test_checked_looks_inside():
    x = torch.randn(3, 2)
    with run.checked():
        with pytest.raises(ValueError, match="groups.token names 3; x has 3 tokens"):
            permute(x, hand_made([0, 3], 2))
        with pytest.raises(ValueError, match=r"groups.offsets is \[0, 3\]; allowed: ascending, at most 2"):
            permute(x, hand_made([0, 1], 3))
        permute(x, hand_made([0, -1, 9], 2))
