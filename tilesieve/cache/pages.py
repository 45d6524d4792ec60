"""Which pages hold which sequence: integers only, no tensors."""

from dataclasses import dataclass, field


@dataclass
class PageBook:
    """Hands out pages of `page_size` tokens from a pool of `pages`.

    A sequence is a number. Pages go back to the pool when their sequence is closed, and are
    handed out lowest first, so that a book's history decides its future.
    """

    pages: int
    page_size: int
    _free: list[int] = field(default_factory=list)
    _table: dict[int, list[int]] = field(default_factory=dict)
    _length: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pages < 0 or self.page_size < 1:
            raise ValueError(f"pages is {self.pages} and page_size {self.page_size}; allowed: >= 0 and >= 1")
        self._free = list(range(self.pages - 1, -1, -1))

    def open(self) -> int:
        """A new, empty sequence; the lowest number not in use."""
        seq = next(n for n in range(len(self._table) + 1) if n not in self._table)
        self._table[seq], self._length[seq] = [], 0
        return seq

    def close(self, seq: int) -> None:
        """Forget a sequence; its pages are free again."""
        self._known(seq)
        self._free.extend(self._table.pop(seq))
        self._free.sort(reverse=True)
        del self._length[seq]

    def extend(self, seq: int, tokens: int) -> list[int]:
        """Room for `tokens` more; returns their slots (page * page_size + offset).

        Raises ValueError, and changes nothing, when the pool has too few free pages.
        """
        self._known(seq)
        if tokens < 0:
            raise ValueError(f"tokens is {tokens}; allowed: an integer >= 0")
        start = self._length[seq]
        needed = -(-(start + tokens) // self.page_size) - len(self._table[seq])
        if needed > len(self._free):
            raise ValueError(
                f"tokens is {tokens}: that needs {needed} pages; {len(self._free)} of {self.pages} are free"
            )
        self._table[seq].extend(self._free.pop() for _ in range(needed))
        self._length[seq] = start + tokens
        return [self.slot(seq, position) for position in range(start, start + tokens)]

    def slot(self, seq: int, position: int) -> int:
        """Where a position lies. Raises ValueError for a position past the end."""
        self._known(seq)
        if not 0 <= position < self._length[seq]:
            raise ValueError(f"position is {position}; sequence {seq} has {self._length[seq]}")
        page, offset = divmod(position, self.page_size)
        return self._table[seq][page] * self.page_size + offset

    def length(self, seq: int) -> int:
        self._known(seq)
        return self._length[seq]

    def table(self, seq: int) -> tuple[int, ...]:
        """The pages of a sequence, in order."""
        self._known(seq)
        return tuple(self._table[seq])

    @property
    def free(self) -> int:
        return len(self._free)

    def copy(self) -> "PageBook":
        """An independent book in the same state."""
        book = PageBook(self.pages, self.page_size)
        book._free = list(self._free)
        book._table = {seq: list(pages) for seq, pages in self._table.items()}
        book._length = dict(self._length)
        return book

    def _known(self, seq: int) -> None:
        if seq not in self._table:
            raise ValueError(f"seq is {seq}; open: {sorted(self._table) or 'none'}")
