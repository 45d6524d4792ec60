"""Laws of slots: right places by hand, what becomes -1, and the faults that have been seen elsewhere."""

import pytest
import torch
from harness import GARBAGE, build, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.ops import catalogue, run
from tilesieve.ops.slots import reference
from tilesieve.ops.slots.op import slots
from tilesieve.types import Pages, Rows, Selection, Slots

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def select(index, count=None, space="position"):
    index = torch.tensor(index, dtype=torch.int32)
    count = torch.full(index.shape[:-1], index.shape[-1]) if count is None else torch.tensor(count)
    return Selection(index, count.int(), None, space)


PAGES = Pages(torch.tensor([[7, 2, 5], [1, -1, 0]], dtype=torch.int32), ints(10, 12), 4, 12)


@IMPLS
def test_places_by_hand(impl):
    got = slots(select([[0, 3, 4, 9], [0, 8, 11, 2]]), PAGES, Rows(ints(0, 1), ints(9, 11)), impl=impl)
    assert got.slot.tolist() == [[28, 31, 8, 21], [4, 0, 3, 6]]
    assert got.slot.dtype == torch.int64
    assert got.count.tolist() == [4, 4]


@IMPLS
def test_what_is_not_there_is_minus_one_where_it_stands(impl):
    # Before 0, at the length, far past it, on a page < 0, past the count.
    index = [[-1, 0, 10, 1, 2**31 - 1, 2], [3, 4, 7, 8, -(2**31), 9]]
    got = slots(select(index, [6, 5]), PAGES, Rows(ints(0, 1), ints(9, 11)), impl=impl)
    assert got.slot.tolist() == [[-1, 28, -1, 29, -1, 30], [7, -1, -1, 0, -1, -1]]
    assert got.count.tolist() == [6, 5]


@IMPLS
def test_rows_that_see_nothing(impl):
    rows = Rows(ints(-1, 2, 2**31 - 1, 0, 0), ints(3, 3, 3, -1, 0))
    got = slots(select([[0, 1]] * 5), PAGES, rows, impl=impl)
    # The last row: the limit is the sequence's length, not the row's position.
    assert got.slot.tolist() == [[-1, -1]] * 4 + [[28, 29]]


@IMPLS
def test_a_length_beyond_the_table_reads_no_page(impl):
    pages = Pages(torch.tensor([[3, 1], [9, 9]], dtype=torch.int32), ints(100, 8), 4, 100)
    got = slots(select([[7, 8, 9, 99]]), pages, Rows(ints(0), ints(99)), impl=impl)
    assert got.slot.tolist() == [[7, -1, -1, -1]]


@IMPLS
def test_addresses_are_64_bits_wide(impl):
    last = 2**31 - 1
    pages = Pages(torch.tensor([[last]], dtype=torch.int32), ints(64), 64, 64)
    got = slots(select([[63]]), pages, Rows(ints(0), ints(63)), impl=impl)
    assert got.slot.tolist() == [[last * 64 + 63]]


@IMPLS
def test_sets_of_a_row_have_their_own_counts(impl):
    got = slots(select([[[0, 1], [4, 5]]], [[1, 2]]), PAGES, Rows(ints(0), ints(9)), impl=impl)
    assert got.slot.tolist() == [[[28, -1], [8, 9]]]
    assert got.count.tolist() == [[1, 2]]


@IMPLS
def test_an_unused_page_is_never_seen(impl):
    """Garbage in the table past the length, and in sequences that no row names, changes nothing."""
    dirty = PAGES.table.clone()
    dirty[0, 2], dirty[1] = GARBAGE, GARBAGE
    short = ints(8, 12)
    rows, chosen = Rows(ints(0), ints(7)), select([[0, 5, 8, 9]])
    clean = slots(chosen, Pages(PAGES.table, short, 4, 12), rows, impl=impl)
    assert same_bits(slots(chosen, Pages(dirty, short, 4, 12), rows, impl=impl).slot, clean.slot)


def test_passes_do_not_show(monkeypatch):
    case = next(c for c in catalogue.cases("slots").CASES if c.name == "spoilt")
    whole = slots(**build(case)).slot
    for entries in (1, 40, 100):
        monkeypatch.setattr(reference, "_ENTRIES", entries)
        assert same_bits(slots(**build(case), impl="cpu").slot, whole)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_slots_of_all_positions_are_the_sequence(data):
    """Asked for 0..L-1, a row gets its sequence's tokens in order: page by page, each once."""
    page_size = data.draw(st.integers(1, 5))
    length = data.draw(st.integers(0, 12))
    pages = -(-length // page_size) + data.draw(st.integers(0, 2))
    table = torch.tensor([data.draw(st.permutations(range(pages)))], dtype=torch.int32).view(1, pages)
    width = length + data.draw(st.integers(0, 3))
    chosen = Selection(torch.arange(width, dtype=torch.int32)[None], ints(width), None, "position")
    got = slots(chosen, Pages(table, ints(length), page_size, length), Rows(ints(0), ints(0)))
    pool = torch.arange(pages * page_size).view(pages, page_size)
    want = pool[table[0].long()].flatten()[:length].tolist()
    assert got.slot[0].tolist() == want + [-1] * (width - length)


def test_the_count_passes_through_and_out_is_filled():
    chosen, rows = select([[0, 1, 2]], [2]), Rows(ints(0), ints(9))
    assert slots(chosen, PAGES, rows).count is chosen.count
    out = Slots(torch.zeros(1, 3, dtype=torch.int64), ints(9))
    assert slots(chosen, PAGES, rows, out=out) is out
    assert out.slot.tolist() == [[28, 29, -1]]
    assert out.count.tolist() == [2]


def test_wrong_input_is_named():
    chosen, rows = select([[0, 1]]), Rows(ints(0), ints(9))
    for space in ("key", "block", "expert"):
        with pytest.raises(ValueError, match=f"selection.space is '{space}'; allowed: 'position'"):
            slots(select([[0, 1]], space=space), PAGES, rows)
    with pytest.raises(ValueError, match="rows.seq has shape \\(2,\\)"):
        slots(chosen, PAGES, Rows(ints(0, 1), ints(0)))
    with pytest.raises(ValueError, match="selection.index is torch.int64"):
        slots(Selection(chosen.index.long(), chosen.count, None, "position"), PAGES, rows)
    with pytest.raises(ValueError, match="pages.page_size is 0"):
        slots(chosen, Pages(PAGES.table, PAGES.length, 0, 12), rows)
    with pytest.raises(ValueError, match="out: slot is torch.int32"):
        slots(chosen, PAGES, rows, out=Slots(torch.zeros(1, 2, dtype=torch.int32), ints(0)))
    with pytest.raises(ValueError, match="out: slot is \\(1, 3\\)"):
        slots(chosen, PAGES, rows, out=Slots(torch.zeros(1, 3, dtype=torch.int64), ints(0)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"index": [[0, 10]]}, "selection.index"),
        ({"index": [[0, -1]]}, "selection.index"),
        ({"count": [3]}, "selection.count"),
        ({"seq": [2]}, "rows.seq"),
        ({"length": [13, 12]}, "pages.length"),
        ({"length": [10, 5]}, "pages.table"),
    ],
)
def test_checked_looks_inside(spoil, message):
    given = {"index": [[0, 1]], "count": [2], "seq": [0], "length": [10, 4]} | spoil
    with run.checked(), pytest.raises(ValueError, match=message):
        pages = Pages(PAGES.table, ints(*given["length"]), 4, 12)
        slots(select(given["index"], given["count"]), pages, Rows(ints(*given["seq"]), ints(9)))
