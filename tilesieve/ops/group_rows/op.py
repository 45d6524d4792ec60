"""group_rows: picks of experts as rows ordered by expert, with the tiles of a grouped GEMM over them."""

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.group_rows.layouts import RESERVES, rows_bound, tiles_bound
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Groups, Selection

TILES = range(16, 129, 16)


def _outputs(index: Tensor, count: Tensor, expert_map: Tensor | None, experts: int, tile: int, align: int,
             reserve: str, capacity: int | None) -> tuple[Spec, ...]:  # fmt: skip
    tokens, picks = index.shape
    rows = rows_bound(tokens * picks, experts, align=align, reserve=reserve, capacity=capacity)
    tiles = tiles_bound(tokens * picks, experts, tile, capacity)
    shapes = ((rows,), (rows,), (experts + 1,), (tiles, 3), (tokens, picks))
    return tuple((shape, torch.int32) for shape in shapes)


def _listed(index: Tensor, count: Tensor) -> Tensor:
    return index[torch.arange(index.shape[1], device=index.device) < count[:, None]]


def _sizes(index: Tensor, count: Tensor, expert_map: Tensor | None, experts: int, tile: int, align: int,
           reserve: str, capacity: int | None) -> dict[str, int]:  # fmt: skip
    shapes = [shape for shape, _ in _outputs(index, count, expert_map, experts, tile, align, reserve, capacity)]
    listed = _listed(index, count)
    mapped = 0
    if expert_map is not None:
        mapped = len(listed[(listed >= 0) & (listed < len(expert_map))].unique())
    return {
        "tokens": index.shape[0], "picks": index.shape[1], "experts": experts, "rows": shapes[0][0],
        "tiles": shapes[3][0], "listed": len(listed), "mapped": mapped,
    }  # fmt: skip


def _check(index: Tensor, count: Tensor, expert_map: Tensor | None, experts: int, tile: int, align: int,
           reserve: str, capacity: int | None) -> None:  # fmt: skip
    if bool(((count < 0) | (count > index.shape[1])).any()):
        raise ValueError(f"selection.count is {int(count.min())} to {int(count.max())}; allowed: 0 to {index.shape[1]}")
    listed, known = _listed(index, count), experts if expert_map is None else len(expert_map)
    if bool(((listed < -1) | (listed >= known)).any()):
        raise ValueError(f"selection.index names experts {int(listed.min())} to {int(listed.max())}; "
                         f"allowed: 0 to {known - 1}, and -1 for none")  # fmt: skip
    if expert_map is not None and bool(((expert_map < -1) | (expert_map >= experts)).any()):
        raise ValueError(f"expert_map is {expert_map.tolist()}; allowed: 0 to {experts - 1}, and -1 for elsewhere")
    if capacity is not None:
        expert = listed[listed >= 0].long()
        expert = expert if expert_map is None else expert_map[expert].long()
        most = torch.bincount(expert[expert >= 0], minlength=1).max()
        if int(most) > capacity:
            raise ValueError(f"capacity is {capacity}; an expert has {int(most)} rows")


OP = define(
    Op(
        name="group_rows",
        schema="Tensor index, Tensor count, Tensor? expert_map, int experts, int tile, int align, str reserve, "
        "int? capacity",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("token", "choice", "offsets", "tiles", "row"),
        check=_check,
    )
)


def group_rows(selection: Selection, *, experts: int, expert_map: Tensor | None = None, tile: int = 64,
               align: int = 1, reserve: str = "count", capacity: int | None = None, out: Groups | None = None,
               impl: str | None = None) -> Groups:  # fmt: skip
    """The picks of a selection as rows ordered by (expert, token, choice).

    selection  index int32 [T,K] in space "expert", count int32 [T]: picks past a token's count
               are not looked at
    experts    E, how many groups there are; the groups of experts that nobody picked are empty
    expert_map int32 [logical experts]: the group of each logical id, -1 = elsewhere; None: ids are
               groups. An id < 0 or >= the logical experts, or mapped to < 0 or >= E, contributes
               nothing and has row -1
    tile       most rows of a tile, a multiple of 16 from 16 to 128; a tile holds rows of one expert
    align      1: ragged, no padding. Else each group begins at a multiple of `align`
    reserve    rows taken per group. "count": the least multiple of align that holds it;
               "count_plus_one": the least that holds one row more (4096 rows at 128 take 4224, an
               empty group 128)
    capacity   masked layout: group e has rows e * capacity to (e + 1) * capacity. Rows past it, in
               (token, choice) order, are left out with row -1 (`checked()` raises): the one way in
               which a token's picks depend on the tokens before it

    Returns Groups. N and n are host bounds from shapes, nothing is read back: N is T * K where
    align is 1, the worst case with padding, or E * capacity; n the worst case of tiles. Padding and
    rows past offsets[-1] have token and choice -1, unused tiles are -1 throughout. bound is T * K,
    or capacity where that is smaller. Other layouts (labels, psum) and the ways between them:
    tilesieve.ops.group_rows.layouts.

    Raises ValueError naming the argument for another space, a wrong shape, dtype, device or choice,
    a capacity that is no multiple of align, or 2^31 rows.
    """
    expect.noun("selection", selection, Selection)
    if selection.space != "expert":
        raise ValueError(f"selection.space is {selection.space!r}; allowed: 'expert'")
    dims: dict[str, int] = {}
    index, count = selection.index, selection.count
    expect.shape(dims, "selection.index", index, "T K", expect.INT32)
    expect.shape(dims, "selection.count", count, "T", expect.INT32)
    if expert_map is not None:
        expect.shape(dims, "expert_map", expert_map, "logical", expect.INT32)
    expect.same_device("selection.index", index, expert_map=expert_map, **{"selection.count": count})
    expect.at_least("experts", experts, 0)
    expect.at_least("align", align, 1)
    if tile not in TILES:
        raise ValueError(f"tile is {tile!r}; allowed: {', '.join(map(str, TILES))}")
    expect.one_of("reserve", reserve, RESERVES)
    if capacity is not None:
        expect.at_least("capacity", capacity, 0)
        if capacity % align or reserve != "count":
            raise ValueError(f"capacity is {capacity} with align = {align}, reserve = {reserve!r}; "
                             "allowed: a multiple of align, with reserve = 'count'")  # fmt: skip
    rows = max(dims["T"] * dims["K"],
               rows_bound(dims["T"] * dims["K"], experts, align=align, reserve=reserve, capacity=capacity))  # fmt: skip
    if rows >= 1 << 31:
        raise ValueError(f"the result would have {rows} rows; allowed: less than 2^31, a row number is int32")
    args = (index, count, expert_map, experts, tile, align, reserve, capacity)
    flat = None
    if out is not None:
        if out.row is None:
            raise ValueError("out.row is None; allowed: a tensor int32 [T, K]")
        flat = (out.token, out.choice, out.offsets, out.tiles, out.row)
    token, choice, offsets, tiles, row = call(OP, *args, out=flat, impl=impl)
    bound = dims["T"] * dims["K"] if capacity is None else min(dims["T"] * dims["K"], capacity)
    return Groups(token, choice, offsets, tiles, bound, row, tile, align)
