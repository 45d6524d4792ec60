"""topk: the k best positions of a score row, exactly, with every tie decided."""

from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.ops.topk.cpu import topk as picked
from tilesieve.ops.topk.reference import window
from tilesieve.types import Pages, Rows, Selection, Slots

SHARES = ("layer", "kv_head", "q_head")
REDUCES = ("mass", "sum", "max")
SPACES = ("key", "position", "block")


class _Flat(NamedTuple):
    """The arguments of the torch op, in its schema's order. scores are [R,S,L]; S / sets heads share a set."""

    scores: Tensor
    k: int
    start: Tensor | None
    end: Tensor | None
    sets: int
    reduce: str
    first: int
    last: int
    local_k: int | None
    block: int
    table: Tensor | None
    length: Tensor | None
    page_size: int
    seq: Tensor | None
    position: Tensor | None


def _outputs(*args: Any) -> tuple[Spec, ...]:
    flat = _Flat(*args)
    shape = (flat.scores.shape[0], flat.sets)
    # Without pages there are no slots, and the third output holds nothing.
    slots = 0 if flat.table is None else flat.k
    return ((*shape, flat.k), torch.int32), (shape, torch.int32), ((*shape, slots), torch.int64)


def _sizes(*args: Any) -> dict[str, int]:
    flat = _Flat(*args)
    rows, heads, width = flat.scores.shape
    start, end = window(rows, width, flat.start, flat.end, flat.length, flat.seq, flat.position, flat.scores.device)
    several = heads > flat.sets
    sizes = {
        "rows": rows, "picks": flat.k, "width": width, "heads": heads, "sets": flat.sets,
        "scanned": heads * int((end - start).sum()), "mass": int(several and flat.reduce == "mass"),
        "summed": int(several and flat.reduce == "sum"),
        "starts": int(flat.start is not None), "ends": int(flat.end is not None),
    }  # fmt: skip
    if flat.table is None or flat.length is None or flat.seq is None or flat.position is None:
        return sizes
    # Which table entries are read shows in the picks only. They are not asked of the torch op, which is observed.
    out = tuple(torch.empty(shape, dtype=dtype, device=flat.scores.device) for shape, dtype in _outputs(*args))
    picked(*args, out=out)
    row, _, _ = (out[0] >= 0).nonzero(as_tuple=True)
    place, seq = out[0][out[0] >= 0].long(), flat.seq.long()[row]
    pages = flat.table.shape[1]
    entry = (seq * pages + place // flat.page_size)[place < pages * flat.page_size]
    known = flat.seq[(flat.seq >= 0) & (flat.seq < len(flat.length)) & (flat.position >= 0)]
    return sizes | {"paged": 1, "pages": len(entry.unique()), "sequences": len(known.unique())}


def _check(*args: Any) -> None:
    flat = _Flat(*args)
    rows, _, width = flat.scores.shape
    low = torch.zeros(rows, dtype=torch.int32, device=flat.scores.device) if flat.start is None else flat.start
    high = torch.full_like(low, width) if flat.end is None else flat.end
    if bool((low < 0).any()):
        raise ValueError(f"start is {int(low.min())} in a row; allowed: >= 0")
    if bool((high > width).any()):
        raise ValueError(f"end is {int(high.max())} in a row; allowed: at most the {width} columns of scores")
    if bool((low > high).any()):
        row = int((low > high).nonzero()[0])
        raise ValueError(f"start is {int(low[row])} and end {int(high[row])} in row {row}; allowed: start <= end")
    if flat.table is None or flat.length is None or flat.seq is None:
        return
    table, length = flat.table, flat.length
    sequences, pages = table.shape
    if bool((flat.seq >= sequences).any()):
        raise ValueError(
            f"rows.seq names {int(flat.seq.max())}; pages has {sequences} sequences (-1: a row of padding)"
        )
    if bool((length < 0).any()) or bool((length > pages * flat.page_size).any()):
        raise ValueError(f"pages.length is {length.tolist()}; allowed: 0 to {pages} pages of {flat.page_size}")
    needed = torch.arange(pages, device=table.device) * flat.page_size < length[:, None]
    if bool((table[needed] < 0).any()):
        raise ValueError(f"pages.table holds page {int(table[needed].min())} within a sequence's length; allowed: >= 0")


OP = define(
    Op(
        name="topk",
        schema="Tensor scores, int k, Tensor? start, Tensor? end, int sets, str reduce, int first, int last, "
        "int? local_k, int block, Tensor? table, Tensor? length, int page_size, Tensor? seq, Tensor? position",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("index", "count", "slot"),
        check=_check,
    )
)


def _sets(scores: Tensor, share: str, groups: int | None) -> int:
    heads = scores.shape[1]
    if share == "q_head" or scores.dim() == 2:
        return heads if scores.dim() == 3 else 1
    if share == "layer":
        groups = 1
    elif groups is None:
        raise ValueError("groups is None; allowed with share='kv_head': the number of kv heads")
    expect.at_least("groups", groups, 1)
    if heads == 0 or heads % groups:
        raise ValueError(f"groups is {groups} for {heads} heads; allowed: a divisor, each set with a head or more")
    return groups


def _check_arguments(scores: Tensor, k: int, start: Tensor | None, end: Tensor | None, first: int, last: int,
                     local_k: int | None, block: int, space: str, pages: Pages | None,
                     rows: Rows | None) -> None:  # fmt: skip
    dims: dict[str, int] = {}
    expect.shape(dims, "scores", scores, "R L" if scores.dim() == 2 else "R S L", expect.FP32)
    if scores.shape[-1] >= 1 << 31:
        raise ValueError(f"scores has {scores.shape[-1]} columns; allowed: less than 2^31, an index is int32")
    for name, tensor in (("start", start), ("end", end)):
        if tensor is not None:
            expect.shape(dims, name, tensor, "R", expect.INT32)
    for name, value, least in (("k", k, 1), ("first", first, 0), ("last", last, 0), ("block", block, 1)):
        expect.at_least(name, value, least)
    if local_k is not None:
        expect.at_least("local_k", local_k, 1)
    if first + last > k:
        raise ValueError(f"first + last is {first} + {last}; allowed: at most k = {k}, they count inside it")
    expect.one_of("space", space, SPACES)
    if (pages is None) != (rows is None):
        given, missing = ("rows", "pages") if pages is None else ("pages", "rows")
        raise ValueError(f"{given} without {missing}; allowed: both or neither")
    if pages is not None and rows is not None:
        if space != "position":
            raise ValueError(f"space is {space!r} with pages; allowed: 'position'")
        expect.paged(dims, "scores", scores, pages, rows)
    expect.same_device("scores", scores, start=start, end=end)


@overload
def topk(scores: Tensor, *, k: int, start: Tensor | None = ..., end: Tensor | None = ..., share: str = ...,
         groups: int | None = ..., reduce: str = ..., first: int = ..., last: int = ..., local_k: int | None = ...,
         block: int = ..., space: str = ..., pages: None = ..., rows: None = ..., out: Selection | None = ...,
         impl: str | None = ...) -> Selection: ...  # fmt: skip
@overload
def topk(scores: Tensor, *, k: int, start: Tensor | None = ..., end: Tensor | None = ..., share: str = ...,
         groups: int | None = ..., reduce: str = ..., first: int = ..., last: int = ..., local_k: int | None = ...,
         block: int = ..., space: str = ..., pages: Pages, rows: Rows, out: tuple[Selection, Slots] | None = ...,
         impl: str | None = ...) -> tuple[Selection, Slots]: ...  # fmt: skip
def topk(scores: Tensor, *, k: int, start: Tensor | None = None, end: Tensor | None = None, share: str = "q_head",
         groups: int | None = None, reduce: str = "mass", first: int = 0, last: int = 0, local_k: int | None = None,
         block: int = 4096, space: str = "key", pages: Pages | None = None, rows: Rows | None = None,
         out: Selection | tuple[Selection, Slots] | None = None,
         impl: str | None = None) -> Selection | tuple[Selection, Slots]:  # fmt: skip
    """The k best columns of each row by (score descending, column ascending): that order has no ties.

    scores  fp32 [R,L] or [R,S,L], S scoring heads
    k       picks per set, >= 1. The index is always k wide, also where k > L
    start, end  int32 [R]: a row picks from columns [max(start, 0), min(end, L)); all by default.
            With pages, `end` is also at most the sequence's length and the row's position + 1
    share   which heads pick together. "layer": all of a row; "kv_head": each of `groups` runs of
            S / groups heads; "q_head": each head for itself. 2-D scores have one set per row
    reduce  one score of a set of several heads. "mass": the softmax of each head over the row's
            range in fp32, summed over heads in ascending order (+inf counts as the largest finite
            number; NaN or -inf in one head is mass 0 there, in every head it is never picked);
            "sum": the scores summed in ascending order, where NaN or -inf in one head is never
            picked; "max": of the heads that are not NaN. One head alone keeps its raw scores
    first, last  columns start..start+first-1 and end-last..end-1 are picked in any case, within
            the range and inside k, before any score and whatever theirs is
    local_k, block  None: exact. Else each block of `block` columns, counted from the row's start,
            offers its best local_k only (first and last aside); a better column ranked after that
            in its block is lost. local_k >= min(k, block) is exact: the order is total, so each of
            a row's k best is among the k best of its own block
    space   what an index means: "key", "position" or "block"
    pages, rows  both or neither, with space="position": returns Slots too, as `slots` would

    -inf and NaN are never picked, -0 equals +0, +inf is legal and ranks first. Returns Selection:
    index int32 [R,K], or [R,groups,K] for "kv_head" and [R,S,K] for "q_head" of 3-D scores,
    ascending, -1 at the tail; count int32, how many were picked; weight None. With pages:
    (Selection, Slots).

    Raises ValueError naming the argument: a wrong shape, dtype, device or choice, k < 1,
    first + last > k, groups that do not divide S.
    """
    _check_arguments(scores, k, start, end, first, last, local_k, block, space, pages, rows)
    expect.one_of("share", share, SHARES)
    expect.one_of("reduce", reduce, REDUCES)
    one = scores.dim() == 2 or share == "layer"
    sets = _sets(scores, share, groups)
    flat = scores if scores.dim() == 3 else scores[:, None]
    paged: tuple[Any, ...] = (None, None, 1, None, None)
    if pages is not None and rows is not None:
        paged = (pages.table, pages.length, pages.page_size, rows.seq, rows.position)
    args = (flat, k, start, end, sets, reduce, first, last, local_k, block, *paged)
    if out is None:
        index, count, slot = call(OP, *args, impl=impl)
        if one:
            index, count, slot = index[:, 0], count[:, 0], slot[:, 0]
        selection = Selection(index, count, None, space)
        return selection if pages is None else (selection, Slots(slot, count))
    selection, slots = out if isinstance(out, tuple) else (out, None)
    if (slots is None) != (pages is None):
        raise ValueError("out is a Selection; allowed with pages: (Selection, Slots)" if slots is None else
                         "out is a pair; allowed without pages: a Selection")  # fmt: skip
    index, count = selection.index, selection.count
    slot = index.new_empty(*index.shape[:-1], 0, dtype=torch.int64) if slots is None else slots.slot
    if slots is not None:
        expect.shape(dict(zip("RG", count.shape, strict=False)), "out: slots.count", slots.count,
                     "R G"[: 2 * count.dim() - 1], expect.INT32)  # fmt: skip
    whole = tuple(t[:, None] if one else t for t in (index, count, slot))
    call(OP, *args, out=whole, impl=impl)
    if slots is None:
        return Selection(index, count, None, space)
    slots.count.copy_(count)
    return Selection(index, count, None, space), slots
