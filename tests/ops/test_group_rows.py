"""Laws of group_rows: every pick once, in (expert, token, choice) order, whatever is invalid, empty or skewed."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops import run
from tilesieve.ops.group_rows.layouts import rows_bound, tiles_bound
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.types import Groups, Selection

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
LOW, HIGH = -(2**31), 2**31 - 1


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def select(index, count=None, space="expert"):
    index = ints(index)
    count = torch.full(index.shape[:-1], index.shape[-1]) if count is None else torch.tensor(count)
    return Selection(index, count.int(), None, space)


def picks_of(groups):
    """(expert, token, choice) of every row that is no padding, in row order."""
    rows = []
    for e in range(len(groups.offsets) - 1):
        for n in range(int(groups.offsets[e]), int(groups.offsets[e + 1])):
            if groups.token[n] >= 0:
                rows.append((e, int(groups.token[n]), int(groups.choice[n])))
    return rows


def consistent(groups):
    """token and choice, row, offsets and tiles tell one story."""
    rows, end = len(groups.token), int(groups.offsets[-1])
    assert end <= rows and groups.token[end:].eq(-1).all() and groups.choice[end:].eq(-1).all()
    assert groups.token.lt(0).eq(groups.choice.lt(0)).all()
    back = {(t, c): n for t, line in enumerate(groups.row.tolist()) for c, n in enumerate(line) if n >= 0}
    live = groups.token.ge(0).nonzero()[:, 0].tolist()
    assert back == {(int(groups.token[n]), int(groups.choice[n])): n for n in live}
    covered = []
    for e, first, valid in groups.tiles.tolist():
        if e < 0:
            assert (e, first, valid) == (-1, -1, -1)
            continue
        assert 1 <= valid <= groups.tile
        assert groups.offsets[e] <= first and first + valid <= groups.offsets[e + 1]
        covered += range(first, first + valid)
    assert covered == live  # every live row in one tile, in order, no padding row in any
    used = groups.tiles[:, 0].ge(0).tolist()
    assert used == sorted(used, reverse=True)
    assert all(int(o) % groups.align == 0 for o in groups.offsets[:-1])


@IMPLS
def test_by_hand(impl):
    groups = group_rows(select([[2, 0], [0, 2], [0, 1]]), experts=4, tile=16, impl=impl)
    assert groups.token.tolist() == [0, 1, 2, 2, 0, 1]
    assert groups.choice.tolist() == [1, 0, 0, 1, 0, 1]
    assert groups.offsets.tolist() == [0, 3, 4, 6, 6]
    assert groups.row.tolist() == [[4, 0], [1, 5], [2, 3]]
    assert groups.tiles.tolist() == [[0, 0, 3], [1, 3, 1], [2, 4, 2], [-1, -1, -1]]
    assert (groups.bound, groups.tile, groups.align) == (6, 16, 1)
    assert all(t.dtype == torch.int32 for t in (groups.token, groups.choice, groups.offsets, groups.tiles, groups.row))


@IMPLS
def test_what_is_invalid_contributes_nothing(impl):
    chosen = select([[-1, 1, 5], [LOW, HIGH, 0], [0, 0, 0], [1, -1, 0]], [3, 3, 1, 9])
    groups = group_rows(chosen, experts=5, tile=16, impl=impl)
    assert picks_of(groups) == [(0, 1, 2), (0, 2, 0), (0, 3, 2), (1, 0, 1), (1, 3, 0)]
    assert groups.row.tolist() == [[-1, 3, -1], [-1, -1, 0], [1, -1, -1], [4, -1, 2]]
    assert groups.token.tolist()[5:] == [-1] * 7 and groups.choice.tolist()[5:] == [-1] * 7
    consistent(groups)
    negative = group_rows(select([[0, 1]] * 2, [-4, 1]), experts=2, tile=16, impl=impl)
    assert picks_of(negative) == [(0, 1, 0)]


@IMPLS
def test_elsewhere_is_left_out(impl):
    """A rank holds experts 5, 3 and 0 of six, in that order; the rest, and ids past the map, are elsewhere."""
    chosen = select([[0, 1, 3], [5, 6, -1], [3, 5, 0]])
    groups = group_rows(chosen, experts=3, expert_map=ints([2, -1, -1, 1, -1, 0]), tile=16, impl=impl)
    assert picks_of(groups) == [(0, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 0), (2, 2, 2)]
    for beyond in (3, 7, HIGH, LOW):  # mapped to no group there is
        mapped = group_rows(chosen, experts=3, expert_map=ints([2, beyond, -1, 1, -1, 0]), tile=16, impl=impl)
        assert torch.equal(mapped.token, groups.token) and torch.equal(mapped.offsets, groups.offsets)


@IMPLS
@pytest.mark.parametrize("align", [1, 16])
def test_every_token_of_one_expert_and_of_an_odd_number_of_experts(impl, align):
    """One expert of one keeps all its tokens; none is lost or counted twice where E is no multiple of a block."""
    groups = group_rows(select([[0]] * 4), experts=1, tile=16, align=align, impl=impl)
    assert groups.token.tolist() == [0, 1, 2, 3] + [-1] * (0 if align == 1 else 12)
    for experts in (1, 3, 5, 7, 9, 257):
        index = torch.arange(3 * experts).view(-1, 3) % experts
        groups = group_rows(select(index.tolist()), experts=experts, tile=16, align=align, impl=impl)
        counts = Counter(e for e, _, _ in picks_of(groups))
        assert counts == {e: 3 for e in range(experts)}
        consistent(groups)


@IMPLS
@pytest.mark.parametrize("tile", [16, 32, 48, 64, 80, 96, 112, 128])
def test_tiles_at_their_borders(impl, tile):
    """Groups of no row, one, one short of a tile, exactly one, one more, several."""
    sizes = [0, 1, tile - 1, 0, tile, tile + 1, 3 * tile, 0]
    index = [[e] for e, size in enumerate(sizes) for _ in range(size)]
    groups = group_rows(select(index), experts=len(sizes), tile=tile, impl=impl)
    consistent(groups)
    per = Counter(e for e, _, _ in groups.tiles.tolist() if e >= 0)
    assert per == {e: -(-size // tile) for e, size in enumerate(sizes) if size}


@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize(("assigned", "experts"), [(0, 4), (1, 4), (3, 4), (4, 4), (37, 4), (100, 1), (200, 7), (5, 0)])
def test_the_bounds_are_the_worst_case_and_no_more(assigned, experts, tile):
    """Most tiles: one row in every group but the last, and those left in tiles that are one row short of full."""
    started = min(assigned, experts)
    sizes = [1] * started
    if started:
        sizes[-1] += assigned - started
    most = sum(-(-size // tile) for size in sizes)
    assert tiles_bound(assigned, experts, tile) == most
    assert rows_bound(assigned, experts, align=tile) == most * tile
    assert rows_bound(assigned, experts) == (assigned if experts else 0)


def test_no_spread_needs_more_than_the_bounds():
    for assigned, experts, tile in itertools.product(range(9), range(1, 5), (1, 2, 3)):
        spreads = [s for s in itertools.product(range(assigned + 1), repeat=experts) if sum(s) == assigned]
        tiles = max(sum(-(-size // tile) for size in spread) for spread in spreads)
        reserved = max(sum(-(-(size + 1) // tile) * tile for size in spread) for spread in spreads)
        assert tiles_bound(assigned, experts, tile) == tiles
        assert rows_bound(assigned, experts, align=tile) == tiles * tile
        assert rows_bound(assigned, experts, align=tile, reserve="count_plus_one") == reserved


@IMPLS
def test_padding_to_an_alignment(impl):
    index = [[0]] * 128 + [[1]] * 130 + [[3]] * 65
    groups = group_rows(select(index), experts=4, align=128, tile=128, impl=impl)
    assert groups.offsets.tolist() == [0, 128, 384, 384, 512]
    assert groups.align == 128
    consistent(groups)
    assert groups.tiles.tolist()[:4] == [[0, 0, 128], [1, 128, 128], [1, 256, 2], [3, 384, 65]]
    # Small tiles in small groups need little: the same rows at 16.
    small = group_rows(select(index), experts=4, align=16, tile=16, impl=impl)
    assert small.offsets.tolist() == [0, 128, 272, 272, 352]


@IMPLS
def test_the_rule_of_count_plus_one(impl):
    """A whole block more where the count is a multiple of it: 4096 rows at 128 take 4224."""
    index = [[0]] * 4096 + [[1]] * 4095
    groups = group_rows(select(index), experts=3, align=128, tile=128, reserve="count_plus_one", impl=impl)
    assert groups.offsets.tolist() == [0, 4224, 8320, 8448]  # an empty group reserves a block
    least = group_rows(select(index), experts=3, align=128, tile=128, impl=impl)
    assert least.offsets.tolist() == [0, 4096, 8192, 8192]
    consistent(groups)


@IMPLS
def test_slabs_of_a_capacity(impl):
    index = [[0, 1], [0, 2], [0, 2], [0, 2]]
    groups = group_rows(select(index), experts=3, capacity=3, tile=16, impl=impl)
    assert groups.offsets.tolist() == [0, 3, 6, 9]
    assert groups.token.tolist() == [0, 1, 2, 0, -1, -1, 1, 2, 3]
    assert groups.row.tolist() == [[0, 3], [1, 6], [2, 7], [-1, 8]]  # token 3 found expert 0 full
    assert groups.tiles.tolist() == [[0, 0, 3], [1, 3, 1], [2, 6, 3]]
    assert groups.bound == 3
    consistent(groups)
    with run.checked(), pytest.raises(ValueError, match="capacity is 3; an expert has 4 rows"):
        group_rows(select(index), experts=3, capacity=3, tile=16, impl=impl)
    nothing = group_rows(select(index), experts=3, capacity=0, tile=16, impl=impl)
    assert nothing.row.eq(-1).all() and nothing.tiles.shape == (0, 3)


@IMPLS
@pytest.mark.parametrize("more", [{}, {"align": 16}, {"align": 16, "reserve": "count_plus_one"}, {"capacity": 32}])
@pytest.mark.parametrize(("tokens", "experts", "picks"), [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (1, 300, 1)])
def test_nothing_is_legal(impl, more, tokens, experts, picks):
    index = torch.zeros(tokens, picks, dtype=torch.int32)
    chosen = Selection(index, torch.full((tokens,), picks, dtype=torch.int32), None, "expert")
    groups = group_rows(chosen, experts=experts, impl=impl, **more)
    assert groups.offsets.shape == (experts + 1,) and groups.row.shape == (tokens, picks)
    assert len(picks_of(groups)) == (tokens * picks if experts else 0)
    consistent(groups)


@IMPLS
def test_many_experts(impl):
    """More than int16 holds."""
    groups = group_rows(select([[39999, 5], [32768, 32767]]), experts=40000, tile=16, impl=impl)
    assert picks_of(groups) == [(5, 0, 1), (32767, 1, 1), (32768, 1, 0), (39999, 0, 0)]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_every_pick_is_grouped_once_in_order(data):
    """counts sum to the valid picks; each (token, choice) once; sorted by (expert, token, choice); both forms alike."""
    tokens, picks, experts = (data.draw(st.integers(0, high)) for high in (12, 4, 6))
    logical = data.draw(st.none() | st.integers(0, 7))
    known = experts if logical is None else logical
    ids = st.integers(-2, known + 2)
    index = [[data.draw(ids) for _ in range(picks)] for _ in range(tokens)]
    count = [data.draw(st.integers(0, picks)) for _ in range(tokens)]
    chosen = Selection(ints(index).view(tokens, picks), ints(count), None, "expert")
    places = None if logical is None else [data.draw(st.integers(-1, experts - 1)) for _ in range(logical)]
    align = data.draw(st.sampled_from([1, 2, 16]))
    more = data.draw(st.sampled_from([{}, {"reserve": "count_plus_one"}, {"capacity": 48}]))
    given_map = None if places is None else ints(places)
    both = [
        group_rows(chosen, experts=experts, expert_map=given_map, align=align, tile=16, impl=impl, **more)
        for impl in ("reference", "cpu")
    ]
    want = []
    for t in range(tokens):
        for c in range(count[t]):
            e = index[t][c] if places is None else places[index[t][c]] if 0 <= index[t][c] < known else -1
            if 0 <= e < experts:
                want.append((e, t, c))
    for groups in both:
        assert picks_of(groups) == sorted(want)
        assert int(groups.row.ge(0).sum()) == len(want)
        consistent(groups)


def test_out_and_wrong_input_are_named():
    chosen = select([[0, 1]])
    made = group_rows(chosen, experts=2)
    out = Groups(*(torch.zeros_like(t) for t in (made.token, made.choice, made.offsets, made.tiles)), 2)
    with pytest.raises(ValueError, match="out.row is None"):
        group_rows(chosen, experts=2, out=out)
    with pytest.raises(ValueError, match="selection is Tensor"):
        group_rows(chosen.index, experts=2)
    for space in ("key", "position", "block"):
        with pytest.raises(ValueError, match=f"selection.space is '{space}'; allowed: 'expert'"):
            group_rows(select([[0]], space=space), experts=2)
    with pytest.raises(ValueError, match="selection.index is torch.int64"):
        group_rows(Selection(chosen.index.long(), chosen.count, None, "expert"), experts=2)
    with pytest.raises(ValueError, match=r"selection.index has shape \(1, 1, 2\)"):
        group_rows(Selection(chosen.index[None], chosen.count[None], None, "expert"), experts=2)
    with pytest.raises(ValueError, match="expert_map is torch.int64"):
        group_rows(chosen, experts=2, expert_map=torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="experts is -1"):
        group_rows(chosen, experts=-1)
    for tile in (0, 8, 40, 129, 144):
        with pytest.raises(ValueError, match=f"tile is {tile}; allowed: 16, 32"):
            group_rows(chosen, experts=2, tile=tile)
    with pytest.raises(ValueError, match="align is 0"):
        group_rows(chosen, experts=2, align=0)
    with pytest.raises(ValueError, match="reserve is 'more'; allowed: 'count', 'count_plus_one'"):
        group_rows(chosen, experts=2, reserve="more")
    with pytest.raises(ValueError, match="capacity is 100 with align = 64"):
        group_rows(chosen, experts=2, capacity=100, align=64)
    with pytest.raises(ValueError, match="the result would have 2147483648 rows"):
        group_rows(chosen, experts=1 << 16, capacity=1 << 15)


@pytest.mark.parametrize(
    ("index", "count", "places", "message"),
    [
        ([[0, 2]], [2], None, "selection.index names experts 0 to 2; allowed: 0 to 1"),
        ([[0, -2]], [2], None, "selection.index names experts -2"),
        ([[0, 1]], [3], None, "selection.count is 3 to 3; allowed: 0 to 2"),
        ([[0, 3]], [2], [0, 1, -1], "allowed: 0 to 2, and -1 for none"),
        ([[0, 1]], [2], [0, 2, -1], r"expert_map is \[0, 2, -1\]; allowed: 0 to 1"),
    ],
)
def test_checked_looks_inside(index, count, places, message):
    given_map = None if places is None else ints(places)
    with run.checked(), pytest.raises(ValueError, match=message):
        group_rows(select(index, count), experts=2, expert_map=given_map)


def test_checked_accepts_a_masked_token_and_an_expert_elsewhere():
    with run.checked():
        groups = group_rows(select([[-1, -1], [1, 0]]), experts=1, expert_map=ints([-1, 0]))
    assert picks_of(groups) == [(0, 1, 0)]
