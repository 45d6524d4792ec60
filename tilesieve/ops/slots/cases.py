"""Where slots is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Pages, Rows, Selection

ROWS = "rows"


def _inputs(generator: Generator, *, rows: int, picks: int, sets: int = 0, sequences: int = 3, pages: int = 4,
            page_size: int = 4, zero: bool = False, spoil: bool = False) -> dict[str, Any]:  # fmt: skip
    """Random positions below their sequence's length, counts of every size; `spoil` breaks each rule somewhere."""

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=generator, dtype=torch.int32)

    table = torch.randperm(sequences * pages, generator=generator).int().view(sequences, pages)
    length = integers(1, pages * page_size + 1, sequences)
    if zero:
        length[1::2] = 0
    seq = integers(0, sequences, rows)
    shape = (rows, max(sets, 1), picks)
    limit = length[seq.long()][:, None, None] if sequences else torch.ones(rows, 1, 1, dtype=torch.int32)
    index = (torch.rand(shape, generator=generator) * limit).int().sort(-1).values
    count = integers(0, picks + 1, *shape[:2])
    count = torch.where(limit[..., 0] > 0, count, 0)
    position = integers(0, pages * page_size, rows)
    if spoil:
        count[::3] = picks + 5
        index[:, :, ::3] = -1
        index[:, :, 1::4] = pages * page_size + 3
        table[:, 1::3] = -1
        length[::2] = pages * page_size + 9
        seq[::4], seq[1::4], position[::5] = -1, sequences + 2, -1
    index[torch.arange(picks) >= count[..., None]] = -1
    if not sets:
        index, count = index[:, 0], count[:, 0]
    return {
        "selection": Selection(index, count, None, "position"),
        "pages": Pages(table, length, page_size, pages * page_size),
        "rows": Rows(seq, position),
    }


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


CASES = (
    _case("small", rows=5, picks=6),
    _case("sets", rows=7, picks=5, sets=3, page_size=3),
    _case("spoilt", invalid=True, spoil=True, rows=21, picks=17, sets=2, sequences=5),
    _case("one_row", rows=1, picks=64, sets=4, sequences=1, pages=16, page_size=16),
    _case("page_of_one", rows=9, picks=4, pages=11, page_size=1),
    _case("more_than_a_pass", rows=35, picks=2000, pages=30, page_size=64),
    _case("length_zero", rows=9, picks=4, zero=True),
    _case("empty", rows=0, picks=4),
    _case("no_picks", rows=3, picks=0, sets=2),
    _case("no_sequences", invalid=True, rows=3, picks=4, sequences=0),
    _case("no_pages", invalid=True, rows=3, picks=4, pages=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the pages are the same."""
    selection, rows, one = inputs["selection"], inputs["rows"], slice(row, row + 1)
    return {
        **inputs,
        "selection": Selection(selection.index[one], selection.count[one], None, "position"),
        "rows": Rows(rows.seq[one], rows.position[one]),
    }


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    selection, pages, rows = inputs["selection"], inputs["pages"], inputs["rows"]
    sequences, most = pages.table.shape
    listed, entries, seqs = 0, set(), set()
    for r, (seq, position) in enumerate(zip(rows.seq.tolist(), rows.position.tolist(), strict=True)):
        if not 0 <= seq < sequences or position < 0:
            continue
        seqs.add(seq)
        limit = min(int(pages.length[seq]), most * pages.page_size)
        counts = selection.count[r].reshape(-1).tolist()
        for index, count in zip(selection.index[r].reshape(len(counts), -1).tolist(), counts, strict=True):
            listed += len(index[:count])
            entries |= {(seq, i // pages.page_size) for i in index[:count] if 0 <= i < limit}
    read = rows.seq.numel() + rows.position.numel() + selection.count.numel() + listed + len(entries) + len(seqs)
    return 4 * read + 8 * outputs[0].numel()
