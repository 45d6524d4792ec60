"""Where the rows of each expert lie in a buffer, and the forms in which others write that down.

A Layout is one neutral description. `place` makes one from counts; the forms of other libraries are
read and written here:

    offsets  int32 [E+1]: group e is rows offsets[e] to offsets[e+1], its padding last (Groups)
    labels   int32 [rows]: the expert of each row, -1 = padding
    psum     int32 [E]: cumulative ends; group e starts at the end before it, rounded up to align
    masked   a slab of `capacity` rows per expert and int32 [E] counts

Nothing here reads a tensor back unless its `check` is true (the default where a foreign form comes in or
psum goes out): a form that is not what it claims to be then raises ValueError instead of mixing rows up.

Letters: E experts, N rows of a buffer, T tokens, K picks, C capacity, n tiles.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tilesieve.types import Groups

RESERVES = ("count", "count_plus_one")


@dataclass(frozen=True)
class Layout:
    """offsets int32 [E+1], count int32 [E] (rows in use, first in their group), rows of the buffer, and
    the alignment: every group that has rows begins at a multiple of `align`."""

    offsets: Tensor
    count: Tensor
    rows: int
    align: int = 1


def rows_bound(assigned: int, experts: int, *, align: int = 1, reserve: str = "count",
               capacity: int | None = None) -> int:  # fmt: skip
    """Rows a buffer needs for `assigned` rows on `experts` experts, however they are spread."""
    if capacity is not None:
        return experts * capacity
    if reserve == "count_plus_one":
        return (experts + assigned // align) * align
    started = min(experts, assigned)  # worst: that many groups with one row in their last block
    return (started + (assigned - started) // align) * align if started else 0


def tiles_bound(assigned: int, experts: int, tile: int, capacity: int | None = None) -> int:
    """Tiles of `tile` rows for them at most; no tile holds rows of two experts."""
    started = min(experts, assigned)
    most = started + (assigned - started) // tile if started else 0
    return most if capacity is None else min(most, experts * -(-capacity // tile))


def _round_up(rows: Tensor, align: int) -> Tensor:
    return (rows + (align - 1)) // align * align


def place(count_E: Tensor, assigned: int, *, align: int = 1, reserve: str = "count",
          capacity: int | None = None) -> Layout:  # fmt: skip
    """Lay groups of `count` rows out one after the other.

    assigned  host bound on the sum of count: sizes the buffer
    align     1: ragged. Else every group takes a multiple of `align` rows
    reserve   "count": the least such multiple; "count_plus_one": that of count + 1, as the fusedmoe
              example of tilelang does: a whole block more where count is a multiple of align
              (4096 rows at 128 take 4224), a block for an empty group
    capacity  masked: every group has a slab of that many rows; rows past it are left out
    """
    count_E = count_E.int()
    if capacity is not None:
        count_E = count_E.clamp(max=capacity)
        size_E = torch.full_like(count_E, capacity)
    else:
        size_E = _round_up(count_E + int(reserve == "count_plus_one"), align)
    offsets_E1 = torch.cat([size_E.new_zeros(1), size_E.cumsum(0)]).int()
    rows = rows_bound(assigned, len(count_E), align=align, reserve=reserve, capacity=capacity)
    return Layout(offsets_E1, count_E, rows, align)


def source_rows(source: Layout, target: Layout) -> Tensor:
    """int64 [target.rows]: the row of `source` that belongs on each row of `target`, -1 = padding."""
    experts = len(target.count)
    row_N = torch.arange(target.rows, device=target.offsets.device)
    if experts == 0:
        return torch.full_like(row_N, -1)
    expert_N = torch.searchsorted(target.offsets[1:].contiguous().long(), row_N, right=True)
    inside_N = expert_N < experts
    expert_N = expert_N.clamp(max=experts - 1)
    rank_N = row_N - target.offsets[expert_N]
    # Below 0: rows before the first group.
    inside_N &= (rank_N >= 0) & (rank_N < torch.minimum(target.count, source.count)[expert_N])
    return torch.where(inside_N, source.offsets[expert_N] + rank_N, -1)


def move(rows_ND: Tensor, source: Layout, target: Layout) -> Tensor:
    """Rows [N,...] in one layout to another, padding 0. Padding of the source is not used."""
    if rows_ND.shape[0] != source.rows:
        raise ValueError(f"rows has {rows_ND.shape[0]} rows; the source layout has {source.rows}")
    if len(source.count) != len(target.count):
        raise ValueError(f"target has {len(target.count)} experts; the source layout has {len(source.count)}")
    from_N = source_rows(source, target)
    if source.rows == 0:
        return rows_ND.new_zeros(target.rows, *rows_ND.shape[1:])
    moved_ND = rows_ND[from_N.clamp(min=0)]
    return moved_ND.masked_fill_((from_N < 0).view(-1, *[1] * (rows_ND.dim() - 1)), 0)


def tile_table(layout: Layout, tile: int, tiles: int) -> Tensor:
    """int32 [tiles,3]: (expert, first row, valid rows) in expert order, unused ones -1."""
    experts, each = len(layout.count), torch.arange(tiles, device=layout.count.device)
    if experts == 0:
        return torch.full((tiles, 3), -1, dtype=torch.int32, device=layout.count.device)
    per_E = -(-layout.count.long() // tile)
    end_E = per_E.cumsum(0)
    expert_n = torch.searchsorted(end_E, each, right=True)
    used_n = expert_n < experts
    expert_n = expert_n.clamp(max=experts - 1)
    skipped_n = (each - (end_E - per_E)[expert_n]) * tile
    valid_n = (layout.count[expert_n] - skipped_n).clamp(max=tile)
    table_n3 = torch.stack([expert_n, layout.offsets[expert_n] + skipped_n, valid_n], 1)
    return table_n3.masked_fill_(~used_n[:, None], -1).int()


def validate(layout: Layout) -> None:
    """Raise ValueError unless groups lie in order, inside the buffer and on their alignment. Syncs."""
    offsets, count = layout.offsets.tolist(), layout.count.tolist()
    if len(offsets) != len(count) + 1:
        raise ValueError(f"offsets has {len(offsets)} entries; {len(count)} experts need {len(count) + 1}")
    if offsets[0] < 0 or offsets[-1] > layout.rows:
        raise ValueError(f"offsets run from {offsets[0]} to {offsets[-1]}; the buffer has rows 0 to {layout.rows}")
    for e, rows in enumerate(count):
        start, end = offsets[e], offsets[e + 1]
        if not 0 <= rows <= end - start:
            raise ValueError(f"count of expert {e} is {rows}; its rows are {start} to {end}")
        if rows and start % layout.align:
            raise ValueError(f"the rows of expert {e} begin at {start}; allowed: a multiple of align = {layout.align}")


# Forms of other libraries -------------------------------------------------------------------------


def labels(layout: Layout, *, block: int = 1) -> Tensor:
    """int32 [rows], -1 = padding. block: rows that the reader takes under one label; it must divide align,
    or a block would hold rows of two experts."""
    if block < 1 or layout.align % block:
        raise ValueError(f"block is {block}; allowed: a divisor of the layout's align = {layout.align}")
    expert_N = torch.arange(len(layout.count), device=layout.count.device)
    label_N = source_rows(layout, layout)
    if len(expert_N) == 0:
        return label_N.int()
    owner_N = torch.searchsorted(layout.offsets[1:].contiguous(), label_N.clamp(min=0).int(), right=True)
    return torch.where(label_N < 0, -1, owner_N).int()


def from_labels(label_N: Tensor, experts: int, *, align: int = 1, check: bool = True) -> Layout:
    """From the expert of each row, -1 = padding. Each expert's rows are one run, experts ascend."""
    rows, place_N = len(label_N), torch.arange(len(label_N), device=label_N.device)
    known_N = (label_N >= 0) & (label_N < experts)
    slot_N = torch.where(known_N, label_N, experts).long()
    zeros = torch.zeros(experts + 1, dtype=torch.long, device=label_N.device)
    count_E = zeros.scatter_add(0, slot_N, known_N.long())[:-1]
    first_E = zeros.add(rows).scatter_reduce(0, slot_N, place_N, "amin")[:-1]
    end_E = torch.where(count_E > 0, first_E + count_E, 0)
    last = _round_up(end_E.amax(0, keepdim=True) if experts else zeros, align).clamp(max=rows)
    # A group without rows begins where the next one with rows does.
    first_E1 = torch.cat([torch.where(count_E > 0, first_E, rows), last]).minimum(last)
    offsets_E1 = first_E1.flip(0).cummin(0).values.flip(0)
    layout = Layout(offsets_E1.int(), count_E.int(), rows, align)
    if check:
        if bool(((label_N < -1) | (label_N >= experts)).any()):
            raise ValueError(f"labels run from {int(label_N.min())} to {int(label_N.max())}; "
                             f"allowed: -1 to {experts - 1}")  # fmt: skip
        validate(layout)
        if not torch.equal(labels(layout), label_N.int()):
            raise ValueError("labels do not give each expert one run of rows, experts ascending, padding behind it")
    return layout


def psum(layout: Layout, *, check: bool = True) -> Tensor:
    """int32 [E]: the end of each group's rows; the next group starts there, rounded up to align."""
    end_E = torch.where(layout.count > 0, layout.offsets[:-1] + layout.count, 0).cummax(0).values.int()
    if check:
        again = from_psum(end_E, layout.rows, align=layout.align, check=False)
        moved = (again.offsets[:-1] != layout.offsets[:-1]) & (layout.count > 0)
        if bool(moved.any()):
            e = int(moved.nonzero()[0])
            raise ValueError(f"the rows of expert {e} begin at {int(layout.offsets[e])}; cumulative ends at align = "
                             f"{layout.align} would say {int(again.offsets[e])}")  # fmt: skip
    return end_E


def from_psum(end_E: Tensor, rows: int, *, align: int = 1, check: bool = True) -> Layout:
    """From cumulative ends: group e is rows round_up(end[e-1], align) to end[e]; where end[e] is not past that
    start the group is empty. Ends alone need not show a wrong align: keep the Layout where there is one."""
    before_E = torch.cat([end_E.new_zeros(1), end_E])[:-1]
    start_E = _round_up(before_E, align)
    count_E = (end_E - start_E).clamp(min=0)
    if check:
        wrong_E = (end_E < start_E) & (end_E != before_E) | (end_E > rows)
        if bool(wrong_E.any()):
            e = int(wrong_E.nonzero()[0])
            raise ValueError(f"end of expert {e} is {int(end_E[e])}, the one before {int(before_E[e])}; allowed at "
                             f"align = {align}: the same, or {int(start_E[e])} to {rows}")  # fmt: skip
    last = _round_up(end_E[-1:], align) if len(end_E) else end_E.new_zeros(1)
    return Layout(torch.cat([start_E, last]).clamp(max=rows).int(), count_E.int(), rows, align)


def from_masked(count_E: Tensor, capacity: int, *, align: int = 1, check: bool = True) -> Layout:
    """From counts of slabs [E,capacity,...], flattened to rows [E * capacity,...]."""
    if capacity % align:
        raise ValueError(f"capacity is {capacity}; allowed: a multiple of align = {align}")
    if check and bool(((count_E < 0) | (count_E > capacity)).any()):
        raise ValueError(f"count is {count_E.tolist()}; allowed: 0 to capacity = {capacity}")
    return replace(place(count_E.clamp(min=0), 0, capacity=capacity), align=align)


# Groups -------------------------------------------------------------------------------------------


def layout_of(groups: Groups) -> Layout:
    """Where the rows of `groups` lie."""
    live_N1 = torch.cat([groups.offsets.new_zeros(1), (groups.token >= 0).cumsum(0)])
    before_E1 = live_N1[groups.offsets.long().clamp(max=len(groups.token))]
    return Layout(groups.offsets, before_E1.diff().int(), len(groups.token), groups.align)


def inverse(token_N: Tensor, choice_N: Tensor, offsets_E1: Tensor, tokens: int, picks: int) -> Tensor:
    """row int32 [T,K] of Groups: where pick (t, c) lies, -1 = nowhere; of two such rows the later."""
    row_N = torch.arange(len(token_N), device=token_N.device)
    known_N = (row_N < offsets_E1[-1]) & (token_N >= 0) & (token_N < tokens) & (choice_N >= 0) & (choice_N < picks)
    pick_N = torch.where(known_N, token_N.long() * picks + choice_N, tokens * picks)
    row_P = torch.full((tokens * picks + 1,), -1, device=token_N.device)
    return row_P.scatter_reduce_(0, pick_N, row_N, "amax")[:-1].view(tokens, picks).int()


def regroup(groups: Groups, target: Layout, *, tile: int | None = None) -> Groups:
    """The same rows in another layout; tile: rows of a tile, those of `groups` by default."""
    source = layout_of(groups)
    if len(source.count) != len(target.count):
        raise ValueError(f"target has {len(target.count)} experts; groups has {len(source.count)}")
    tile = groups.tile if tile is None else tile
    from_N = source_rows(source, target)
    to_N = torch.cat([source_rows(target, source), from_N.new_full((1,), -1)])
    token_N, choice_N = (torch.cat([t, t.new_full((1,), -1)])[from_N] for t in (groups.token, groups.choice))
    row_TK = None if groups.row is None else to_N[groups.row.long()].int()
    assigned = source.rows if groups.row is None else min(source.rows, groups.row.numel())
    tiles = tiles_bound(assigned, len(source.count), tile) if tile else 0
    table = tile_table(target, tile, tiles) if tile else groups.tiles.new_empty(0, 3)
    return Groups(token_N, choice_N, target.offsets, table, groups.bound, row_TK, tile, target.align)


def truncate(groups: Groups, keep: int) -> Groups:
    """The first `keep` rows only, as `permute(keep=...)` keeps them."""
    keep = min(max(keep, 0), len(groups.token))
    offsets_E1, token_N = groups.offsets.clamp(max=keep), groups.token[:keep]
    cut = Groups(token_N, groups.choice[:keep], offsets_E1, groups.tiles, groups.bound, None, groups.tile, groups.align)
    row_TK = None if groups.row is None else groups.row.masked_fill(groups.row >= keep, -1)
    table = tile_table(layout_of(cut), groups.tile, len(groups.tiles)) if groups.tile else groups.tiles
    return replace(cut, row=row_TK, tiles=table)


def expert_lists(token_EC: Tensor, tokens: int, *, tile: int = 64) -> Groups:
    """Groups of experts that pick their tokens: int32 [E,C], row c of expert e is token [e,c].

    An entry < 0 or >= tokens is left out and later ones move up. Expert e is choice e of its tokens, so
    row and weights are [T,E]; of a token that an expert lists twice only the later row comes back.
    """
    experts, capacity = token_EC.shape
    known_EC = (token_EC >= 0) & (token_EC < tokens)
    order_EC = (~known_EC).int().argsort(stable=True, dim=1)
    token_N = torch.where(known_EC, token_EC, -1).gather(1, order_EC).flatten().int()
    layout = place(known_EC.sum(1), 0, capacity=capacity)
    expert_N = torch.arange(experts, device=token_EC.device).repeat_interleave(capacity)
    choice_N = torch.where(token_N < 0, -1, expert_N).int()
    row_TE = inverse(token_N, choice_N, layout.offsets, tokens, experts)
    table = tile_table(layout, tile, tiles_bound(experts * capacity, experts, tile, capacity))
    return Groups(token_N, choice_N, layout.offsets, table, capacity, row_TE, tile)
