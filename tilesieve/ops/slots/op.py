"""slots: the positions of a selection as places in the page pool."""

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Pages, Rows, Selection, Slots


def _outputs(index: Tensor, count: Tensor, table: Tensor, length: Tensor, page_size: int, seq: Tensor,
             position: Tensor) -> tuple[Spec, ...]:  # fmt: skip
    return ((tuple(index.shape), torch.int64),)


def _listed(index: Tensor, count: Tensor, table: Tensor, seq: Tensor, position: Tensor) -> Tensor:
    """Which entries count, in rows that see something: bool [R,G,K]."""
    sees = (seq >= 0) & (seq < table.shape[0]) & (position >= 0)
    return (torch.arange(index.shape[2], device=index.device) < count[..., None]) & sees[:, None, None]


def _sizes(index: Tensor, count: Tensor, table: Tensor, length: Tensor, page_size: int, seq: Tensor,
           position: Tensor) -> dict[str, int]:  # fmt: skip
    rows, sets, picks = index.shape
    listed = _listed(index, count, table, seq, position)
    seen = seq[(seq >= 0) & (seq < table.shape[0]) & (position >= 0)].long()
    row, _, _ = listed.nonzero(as_tuple=True)
    place, of = index[listed].long(), seq.long()[row]
    real = (place >= 0) & (place < length.long()[of].clamp(max=table.shape[1] * page_size))
    entry = of[real] * table.shape[1] + place[real] // page_size
    return {
        "rows": rows, "sets": sets, "picks": picks, "listed": len(place), "pages": len(entry.unique()),
        "sequences": len(seen.unique()),
    }  # fmt: skip


def _check(index: Tensor, count: Tensor, table: Tensor, length: Tensor, page_size: int, seq: Tensor,
           position: Tensor) -> None:  # fmt: skip
    sequences, pages = table.shape
    if bool((count < 0).any()) or bool((count > index.shape[2]).any()):
        raise ValueError(f"selection.count is {int(count.min())} to {int(count.max())}; allowed: 0 to {index.shape[2]}")
    if bool((seq >= sequences).any()):
        raise ValueError(f"rows.seq names {int(seq.max())}; pages has {sequences} sequences (-1: a row of padding)")
    if bool((length < 0).any()) or bool((length > pages * page_size).any()):
        raise ValueError(f"pages.length is {length.tolist()}; allowed: 0 to {pages} pages of {page_size}")
    needed = torch.arange(pages, device=table.device) * page_size < length[:, None]
    if bool((table[needed] < 0).any()):
        raise ValueError(f"pages.table holds page {int(table[needed].min())} within a sequence's length; allowed: >= 0")
    listed = _listed(index, count, table, seq, position)
    row, _, _ = listed.nonzero(as_tuple=True)
    place, limit = index[listed], length[seq[row].long()]
    if bool(((place < 0) | (place >= limit)).any()):
        raise ValueError("selection.index holds an entry within its count that is < 0 or past its sequence's length")


OP = define(
    Op(
        name="slots",
        schema="Tensor index, Tensor count, Tensor table, Tensor length, int page_size, Tensor seq, Tensor position",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("slot",),
        check=_check,
    )
)


def slots(selection: Selection, pages: Pages, rows: Rows, *, out: Slots | None = None,
          impl: str | None = None) -> Slots:  # fmt: skip
    """Where selected positions lie: slot = table[seq, position // page_size] * page_size + position % page_size.

    selection  index int32 [R,K] or [R,G,K] in space "position", count int32 [R] or [R,G]
    pages      table int32 [B,M], length int32 [B]
    rows       seq, position int32 [R]. A row whose seq is < 0 or >= B, or whose position is
               negative, sees nothing: all its slots are -1

    An entry past the count, < 0, at or past its sequence's length (or the table's M pages), or on
    a page < 0 becomes slot -1 where it stands. The limit is the sequence's length, not the row's
    own position: what a row may see is the selection's matter. Returns Slots: slot int64 of
    index's shape, and the selection's count.

    Raises ValueError naming the argument for another space, a wrong shape, dtype or device.
    """
    if selection.space != "position":
        raise ValueError(f"selection.space is {selection.space!r}; allowed: 'position'")
    letters = "R K" if selection.index.dim() == 2 else "R G K"
    dims: dict[str, int] = {}
    expect.shape(dims, "selection.index", selection.index, letters, expect.INT32)
    expect.shape(dims, "selection.count", selection.count, letters.removesuffix(" K"), expect.INT32)
    expect.same_device("selection.index", selection.index, **{"selection.count": selection.count})
    expect.paged(dims, "selection.index", selection.index, pages, rows)
    index, count = selection.index, selection.count
    if index.dim() == 2:
        index, count = index[:, None], count[:, None]
    args = (index, count, pages.table, pages.length, pages.page_size, rows.seq, rows.position)
    if out is None:
        (slot,) = call(OP, *args, impl=impl)
        return Slots(slot.view(selection.index.shape), selection.count)
    if out.slot.shape != selection.index.shape or out.count.shape != selection.count.shape:
        raise ValueError(f"out: slot is {tuple(out.slot.shape)}, count {tuple(out.count.shape)}; needed: "
                         f"{tuple(selection.index.shape)}, {tuple(selection.count.shape)}")  # fmt: skip
    expect.shape({}, "out.count", out.count, letters.removesuffix(" K"), expect.INT32)
    call(OP, *args, out=(out.slot if out.slot.dim() == 3 else out.slot[:, None],), impl=impl)
    out.count.copy_(selection.count)
    return out
