"""Laws of the page book: nothing is handed out twice, nothing is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesieve.cache.pages import PageBook


def test_slots_follow_the_pages():
    book = PageBook(pages=4, page_size=4)
    a, b = book.open(), book.open()
    assert book.extend(a, 3) == [0, 1, 2]
    assert book.extend(b, 5) == [4, 5, 6, 7, 8]
    assert book.extend(a, 2) == [3, 12]  # the rest of its page, then the next free one
    assert book.table(a) == (0, 3) and book.table(b) == (1, 2)
    assert [book.slot(a, p) for p in range(5)] == [0, 1, 2, 3, 12]
    book.close(b)
    assert book.free == 2
    assert book.extend(book.open(), 1) == [4]  # lowest page first


def test_a_refused_extension_changes_nothing():
    book = PageBook(pages=2, page_size=4)
    seq = book.open()
    book.extend(seq, 5)
    with pytest.raises(ValueError, match="tokens is 4: that needs 1 pages; 0 of 2 are free"):
        book.extend(seq, 4)
    assert book.length(seq) == 5 and book.free == 0
    assert book.extend(seq, 3) == [5, 6, 7]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda b: b.length(7), "seq is 7"),
        (lambda b: b.slot(0, 0), "position is 0"),
        (lambda b: b.extend(0, -1), "tokens is -1"),
        (lambda b: b.close(1), "seq is 1; open: \\[0\\]"),
    ],
)
def test_wrong_calls_say_what_came(call, said):
    book = PageBook(pages=1, page_size=2)
    book.open()
    with pytest.raises(ValueError, match=said):
        call(book)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["open", "extend", "close"]), st.integers(0, 3), st.integers(0, 9)), max_size=40)
)
def test_no_page_is_in_two_places(steps):
    book = PageBook(pages=6, page_size=3)
    live: list[int] = []
    for what, which, tokens in steps:
        if what == "open":
            live.append(book.open())
        elif live:
            seq = live[which % len(live)]
            if what == "close":
                book.close(seq)
                live.remove(seq)
            else:
                try:
                    book.extend(seq, tokens)
                except ValueError:
                    assert -(-(book.length(seq) + tokens) // 3) - len(book.table(seq)) > book.free
        held = [page for seq in live for page in book.table(seq)]
        assert len(set(held)) == len(held) and len(held) + book.free == 6
        slots = [book.slot(seq, p) for seq in live for p in range(book.length(seq))]
        assert len(set(slots)) == len(slots)


def test_a_copy_is_independent():
    book = PageBook(pages=3, page_size=2)
    seq = book.open()
    book.extend(seq, 2)
    twin = book.copy()
    assert twin.extend(seq, 1) == book.extend(seq, 1) == [2]
    twin.close(seq)
    assert book.length(seq) == 3 and twin.free == 3 and book.free == 1
