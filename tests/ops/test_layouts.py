"""Laws of the layouts: every form gives back the groups it came from, and none is read at another alignment."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops.group_rows import layouts
from tilesieve.ops.group_rows.op import group_rows
from tilesieve.ops.permute.op import permute
from tilesieve.types import Selection

SIZES = [128, 130, 65]


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def same(a, b):
    """The same rows for every expert (an empty group may be anywhere)."""
    live = a.count > 0
    return torch.equal(a.count, b.count) and torch.equal(a.offsets[:-1][live], b.offsets[:-1][live])


def routed(index, experts, **more):
    index = torch.tensor(index, dtype=torch.int32)
    count = torch.full(index.shape[:1], index.shape[1], dtype=torch.int32)
    return group_rows(Selection(index, count, None, "expert"), experts=experts, tile=16, **more)


def test_forms_by_hand():
    layout = layouts.place(ints(2, 0, 3), 5, align=4)
    assert layout.offsets.tolist() == [0, 4, 4, 8] and layout.rows == 12
    assert layouts.labels(layout).tolist() == [0, 0, -1, -1, 2, 2, 2, -1, -1, -1, -1, -1]
    assert layouts.psum(layout).tolist() == [2, 2, 7]
    ragged = layouts.place(ints(2, 0, 3), 5)
    assert layouts.labels(ragged).tolist() == [0, 0, 2, 2, 2]
    assert layouts.psum(ragged).tolist() == [2, 2, 5]
    masked = layouts.place(ints(2, 0, 3), 5, capacity=4)
    assert layouts.labels(masked).tolist() == [0, 0, -1, -1, -1, -1, -1, -1, 2, 2, 2, -1]
    plus_one = layouts.place(ints(4, 0, 3), 7, align=4, reserve="count_plus_one")
    assert plus_one.offsets.tolist() == [0, 8, 12, 16] and plus_one.rows == 16
    assert layouts.labels(plus_one).tolist() == [0] * 4 + [-1] * 8 + [2] * 3 + [-1]


def test_count_plus_one_reserves_a_block_more_at_a_multiple():
    for count, reserved in ((4096, 4224), (4095, 4096), (4097, 4224), (0, 128), (1, 128), (127, 128), (128, 256)):
        layout = layouts.place(ints(count), count, align=128, reserve="count_plus_one")
        assert layout.offsets.tolist() == [0, reserved]
        assert layouts.place(ints(count), count, align=128).offsets.tolist() == [0, -(-count // 128) * 128]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_form_gives_back_its_layout(data):
    counts = data.draw(st.lists(st.integers(0, 9), max_size=6))
    align = data.draw(st.sampled_from([1, 2, 4, 8]))
    reserve = data.draw(st.sampled_from(["count", "count_plus_one"]))
    capacity = data.draw(st.none() | st.just(max([*counts, 0]) + -max([*counts, 0]) % align))
    layout = layouts.place(ints(*counts), sum(counts), align=align, reserve=reserve, capacity=capacity)
    layouts.validate(layout)
    experts = len(counts)
    for block in (b for b in (1, 2, 4, 8) if align % b == 0):
        label = layouts.labels(layout, block=block)
        for start in range(0, layout.rows, block):
            assert len(set(label[start : start + block].tolist()) - {-1}) <= 1
    label = layouts.labels(layout)
    assert [int((label == e).sum()) for e in range(experts)] == counts
    assert same(layout, layouts.from_labels(label, experts, align=align))
    if capacity is None and reserve == "count":
        again = layouts.from_psum(layouts.psum(layout), layout.rows, align=align)
        assert same(layout, again)
        layouts.validate(again)
    if capacity is not None:
        assert same(layout, layouts.from_masked(ints(*counts), capacity, align=align))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_rows_survive_any_move(data):
    """From any layout to any other and back: the rows in use are the same, padding is 0 whatever it was."""
    counts = data.draw(st.lists(st.integers(0, 6), max_size=5))
    kinds = st.sampled_from([{}, {"align": 4}, {"align": 2, "reserve": "count_plus_one"}, {"capacity": 7}])
    source, target = (layouts.place(ints(*counts), sum(counts), **data.draw(kinds)) for _ in range(2))
    rows = torch.arange(1.0, 1 + source.rows * 2).view(source.rows, 2)
    used = layouts.labels(source) >= 0
    rows[~used] = torch.nan
    there = layouts.move(rows, source, target)
    back = layouts.move(there, target, source)
    assert torch.equal(back[used], rows[used]) and back[~used].eq(0).all()
    assert there[layouts.labels(target) < 0].eq(0).all()
    assert torch.equal(there[layouts.labels(target) >= 0], rows[used])


def test_padding_of_any_rank_and_type_moves():
    ragged, masked = layouts.place(ints(2, 0, 1), 3), layouts.place(ints(2, 0, 1), 3, capacity=2)
    assert layouts.move(torch.tensor([5, 6, 7]), ragged, masked).tolist() == [5, 6, 0, 0, 7, 0]
    assert layouts.move(torch.ones(3, 2, 2), ragged, masked).shape == (6, 2, 2)
    nothing = layouts.place(ints(0, 0), 0)
    assert layouts.move(torch.ones(0, 4), nothing, layouts.place(ints(0, 0), 0, capacity=2)).tolist() == [[0.0] * 4] * 4
    with pytest.raises(ValueError, match="rows has 2 rows; the source layout has 3"):
        layouts.move(torch.ones(2, 4), ragged, masked)
    with pytest.raises(ValueError, match="target has 2 experts; the source layout has 3"):
        layouts.move(torch.ones(3, 4), ragged, nothing)


# Alignment is carried and checked ---------------------------------------------------------------


def test_a_layout_at_64_is_not_read_at_128():
    """Packed at 64, the groups of 128, 130 and 65 rows begin at 0, 128 and 320: a block of 128 would take the third
    group's rows for the second's."""
    layout = layouts.place(ints(*SIZES), sum(SIZES), align=64)
    assert layout.offsets.tolist() == [0, 128, 320, 448]
    with pytest.raises(ValueError, match="block is 128; allowed: a divisor of the layout's align = 64"):
        layouts.labels(layout, block=128)
    label = layouts.labels(layout, block=64)
    with pytest.raises(ValueError, match="the rows of expert 2 begin at 320; allowed: a multiple of align = 128"):
        layouts.from_labels(label, 3, align=128)
    assert layouts.from_labels(label, 3, align=64).count.tolist() == SIZES
    at_128 = layouts.place(ints(*SIZES), sum(SIZES), align=128)
    assert layouts.labels(at_128, block=128).shape == (len(layouts.labels(at_128)),)
    assert at_128.offsets.tolist() == [0, 128, 384, 512]
    # The same rows, moved to where a reader at 128 looks.
    rows = torch.randn(layout.rows, 3)
    moved = layouts.move(rows, layout, at_128)
    assert torch.equal(moved[384:449], rows[320:385])


def test_groups_that_are_no_multiple_of_the_block_are_seen():
    """Ragged labels read in blocks of 128: refused before anything is multiplied."""
    ragged = layouts.place(ints(100, 28), 128)
    with pytest.raises(ValueError, match="block is 128"):
        layouts.labels(ragged, block=128)
    with pytest.raises(ValueError, match="the rows of expert 1 begin at 100"):
        layouts.from_labels(layouts.labels(ragged), 2, align=128)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0, 2, 2], "labels run from 0 to 2; allowed: -1 to 1"),
        ([0, -2, 1], "labels run from -2 to 1"),
        ([0, 1, 0, 1], "expert 0"),
        ([0, -1, 0, 1], "one run of rows"),
        ([1, 1, 0, 0], "expert"),
    ],
)
def test_labels_that_are_no_layout_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        layouts.from_labels(ints(*label), 2)


@pytest.mark.parametrize(
    ("label", "counts", "starts"),
    [
        ([0, 0, -1, -1], [2, 0], [0, None]),
        ([-1, -1, -1, -1], [0, 0], [None, None]),
        ([-1, -1, 1, 1], [0, 2], [None, 2]),
        ([0, 0, 1, 1, -1, -1, -1, -1, -1, -1], [2, 2], [0, 2]),
        ([], [0, 0], [None, None]),
    ],
)
def test_padding_labels_anywhere(label, counts, starts):
    """Trailing blocks of -1, nothing but -1, an empty group first or last."""
    layout = layouts.from_labels(ints(*label), 2, align=2)
    assert layout.count.tolist() == counts
    assert [s if c else None for s, c in zip(layout.offsets.tolist(), counts, strict=False)] == starts
    table = layouts.tile_table(layout, 16, 4)
    assert [t for t in table.tolist() if t[0] >= 0] == [
        [e, s, c] for e, (s, c) in enumerate(zip(starts, counts, strict=True)) if c
    ]


def test_unchecked_labels_outside_are_padding():
    layout = layouts.from_labels(ints(0, 0, -9, 7, 1, 1), 2, check=False)
    assert layout.count.tolist() == [2, 2] and layout.offsets.tolist()[:2] == [0, 4]


def test_cumulative_ends_of_empty_groups():
    """An empty group repeats the end before it, or says the rounded one; both are no rows."""
    for ends in ([130, 130, 449], [130, 256, 321]):
        layout = layouts.from_psum(ints(*ends), 512, align=128)
        assert layout.count.tolist() == [130, 0, ends[2] - 256]
        layouts.validate(layout)
    trailing = layouts.from_psum(ints(3, 3, 3), 3, align=128)  # the buffer itself may end at the last row
    assert trailing.count.tolist() == [3, 0, 0] and trailing.offsets.tolist() == [0, 3, 3, 3]
    layouts.validate(trailing)
    assert layouts.psum(layouts.place(ints(), 0)).tolist() == []
    assert layouts.from_psum(ints(), 0).offsets.tolist() == [0]


def test_cumulative_ends_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="end of expert 1 is 202, the one before 130; allowed at align = 128"):
        layouts.from_psum(ints(130, 202), 512, align=128)  # packed at 64
    with pytest.raises(ValueError, match="end of expert 1 is 3, the one before 5"):
        layouts.from_psum(ints(5, 3), 8)
    with pytest.raises(ValueError, match="end of expert 1 is 9, .* 5 to 8"):
        layouts.from_psum(ints(5, 9), 8)
    plus_one = layouts.place(ints(4, 2), 6, align=4, reserve="count_plus_one")
    with pytest.raises(ValueError, match="the rows of expert 1 begin at 8; cumulative ends at align = 4 would say 4"):
        layouts.psum(plus_one)
    with pytest.raises(ValueError, match="the rows of expert 1 begin at 8"):
        layouts.psum(layouts.place(ints(4, 2), 6, capacity=8))


@pytest.mark.parametrize("capacity", [1, 7, 63, 64, 200])
def test_slabs_of_any_capacity(capacity):
    """An expert without rows, one that is full, any capacity from 1 on."""
    layout = layouts.from_masked(ints(capacity, 0, 1), capacity)
    assert layout.offsets.tolist() == [0, capacity, 2 * capacity, 3 * capacity]
    tiles = [t for t in layouts.tile_table(layout, 64, 99).tolist() if t[0] >= 0]
    assert sum(t[2] for t in tiles if t[0] == 0) == capacity
    assert tiles[-1] == [2, 2 * capacity, 1] and not [t for t in tiles if t[0] == 1]
    for counts in ([capacity + 1, 0, 0], [0, -1, 0]):
        with pytest.raises(ValueError, match=f"allowed: 0 to capacity = {capacity}"):
            layouts.from_masked(ints(*counts), capacity)
    with pytest.raises(ValueError, match="capacity is 10; allowed: a multiple of align = 4"):
        layouts.from_masked(ints(1), 10, align=4)


def test_validate_says_what_is_wrong():
    good = layouts.Layout(ints(0, 4, 8), ints(2, 4), 8, 4)
    layouts.validate(good)
    for bad, message in (
        (layouts.Layout(ints(0, 4), ints(2, 4), 8, 4), "offsets has 2 entries; 2 experts need 3"),
        (layouts.Layout(ints(0, 4, 8), ints(5, 4), 8, 4), "count of expert 0 is 5; its rows are 0 to 4"),
        (layouts.Layout(ints(0, 4, 8), ints(-1, 4), 8, 4), "count of expert 0 is -1"),
        (layouts.Layout(ints(0, 4, 9), ints(2, 4), 8, 4), "the buffer has rows 0 to 8"),
        (layouts.Layout(ints(0, 3, 8), ints(2, 4), 8, 4), "the rows of expert 1 begin at 3"),
    ):
        with pytest.raises(ValueError, match=message):
            layouts.validate(bad)


# Groups in other layouts --------------------------------------------------------------------------

INDEX = [[0, 2], [2, 3], [0, -1], [2, 0]]


def test_groups_in_one_layout_equal_groups_made_in_it():
    kinds = ({}, {"align": 4}, {"align": 2, "reserve": "count_plus_one"}, {"capacity": 4})
    made = [routed(INDEX, 4, **kind) for kind in kinds]
    for source in made:
        for target in made:
            got = layouts.regroup(source, layouts.layout_of(target))
            for name in ("token", "choice", "offsets", "row"):
                assert torch.equal(getattr(got, name), getattr(target, name)), name
            used, wanted = (t.tiles[t.tiles[:, 0] >= 0] for t in (got, target))
            assert torch.equal(used, wanted)
            assert (got.tile, got.align) == (target.tile, layouts.layout_of(target).align)


def test_the_layout_of_groups_and_the_way_back():
    groups = routed(INDEX, 4, align=4)
    layout = layouts.layout_of(groups)
    assert layout.count.tolist() == [3, 0, 3, 1] and layout.align == 4
    assert layout.offsets.tolist() == [0, 4, 4, 8, 12]
    row = layouts.inverse(groups.token, groups.choice, groups.offsets, 4, 2)
    assert torch.equal(row, groups.row)
    assert layouts.inverse(ints(0, 0, 5, -1), ints(1, 1, 0, 0), ints(0, 4), 1, 2).tolist() == [[-1, 1]]


def test_truncated_groups():
    groups = routed(INDEX, 4)
    assert groups.token.tolist() == [0, 2, 3, 0, 1, 3, 1, -1]
    cut = layouts.truncate(groups, 5)
    assert cut.token.tolist() == [0, 2, 3, 0, 1] and cut.offsets.tolist() == [0, 3, 3, 5, 5]
    assert cut.row.tolist() == [[0, 3], [4, -1], [1, -1], [-1, 2]]
    assert [t for t in cut.tiles.tolist() if t[0] >= 0] == [[0, 0, 3], [2, 3, 2]]
    x = torch.randn(4, 3)
    assert torch.equal(permute(x, cut), permute(x, groups, keep=5))
    assert torch.equal(permute(x, cut), permute(x, groups, drop=3))
    assert layouts.truncate(groups, 99).token.tolist() == groups.token.tolist()
    assert layouts.truncate(groups, -1).offsets.tolist() == [0] * 5


def test_experts_that_pick_their_tokens():
    """The padded mode: slab e is the tokens that expert e chose, entries outside left out."""
    groups = layouts.expert_lists(ints(3, 0, 9, 1, -1, 2).view(2, 3), 4, tile=16)
    assert groups.token.tolist() == [3, 0, -1, 1, 2, -1]
    assert groups.choice.tolist() == [0, 0, -1, 1, 1, -1]
    assert groups.offsets.tolist() == [0, 3, 6]
    assert groups.row.tolist() == [[1, -1], [-1, 3], [-1, 4], [0, -1]]
    assert groups.tiles.tolist() == [[0, 0, 2], [1, 3, 2]]
    assert (groups.bound, groups.tile) == (3, 16)
    full = ints(2, 0, 1, 0).view(2, 2)
    x = torch.randn(3, 5)
    assert torch.equal(permute(x, layouts.expert_lists(full, 3)), x[full.flatten().long()])
    assert layouts.expert_lists(torch.empty(3, 0, dtype=torch.int32), 2).offsets.tolist() == [0] * 4
    assert layouts.expert_lists(torch.empty(0, 2, dtype=torch.int32), 2).row.shape == (2, 0)
