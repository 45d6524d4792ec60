"""What the CPU forms of MoE share: the rows of each expert times its matrix, in products of few sizes.

The bits of a matrix product depend on its shape, so rows are multiplied in tiles padded with zeros, depth and
width padded to multiples of 16. One tile size would do, and would waste most of a product on an expert with
three rows or most of the speed on one with a thousand. So there are several, and a size is used only where
this machine gives a row the bits that BASE gives it: the order of the sums is the code's, not the data's, so
one product of random numbers per shape shows it (`sizes`). Where no other size agrees, all tiles have BASE rows.

Letters: P padded rows of a pass, K depth, M width, both padded to ALIGN; B blocks of K; L live rows.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

BASE = 32
SIZES = (8, 12, 16, 20, 24, 32, 48, 64, 128)
ALIGN = 16
BLOCK = 128  # of K under one scale
PASS = 1024  # rows gathered at once: bounds scratch memory, and keeps it in cache


class Tile(NamedTuple):
    """Rows first to last of a pass, one product with the matrix of `expert`."""

    expert: int
    first: int
    last: int


class Pass(NamedTuple):
    """source int64 [P]: which live row stands on each row of the pass, -1: none (zeros)."""

    source: Tensor
    tiles: list[Tile]


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def sizes(depth: int, width: int, device: torch.device) -> tuple[int, ...]:
    """The tile sizes, ascending, whose products [size, depth] x [depth, width] give a row the same bits."""
    return _agreeing(aligned(depth), aligned(width), str(device), torch.get_num_threads())


@cache
def _agreeing(depth: int, width: int, device: str, threads: int) -> tuple[int, ...]:
    if depth == 0 or width == 0:
        return SIZES
    generator = torch.Generator().manual_seed(0)
    x_PK = torch.randn(max(SIZES), depth, generator=generator).to(device)
    w_MK = torch.randn(width, depth, generator=generator).to(device)
    base_PM = torch.cat([part @ w_MK.t() for part in x_PK.split(BASE)])
    kept = [BASE]
    for size in SIZES:
        if size != BASE:
            # Backwards: each row of the product stands where another stood in its tile of BASE rows.
            got_PM = x_PK[:size].flip(0) @ w_MK.t()
            if torch.equal(got_PM.flip(0), base_PM[:size]):
                kept.append(size)
    return tuple(sorted(kept))


def passes(count: Sequence[int], allowed: Sequence[int], device: torch.device) -> Iterator[Pass]:
    """Tiles over live rows ordered by expert, `count` of them per expert, PASS rows or a few more at a time."""
    each: list[tuple[Tile, int, int]] = []  # the tile, its first live row, how many
    live = padded = 0
    for expert, rows in enumerate(count):
        left = rows
        while left:
            size = next((s for s in allowed if s >= left), allowed[-1])
            taken = min(left, size)
            each.append((Tile(expert, padded, padded + size), live, taken))
            live, left, padded = live + taken, left - taken, padded + size
            if padded >= PASS:
                yield _pass(each, padded, device)
                each, padded = [], 0
    if each:
        yield _pass(each, padded, device)


def _pass(each: list[tuple[Tile, int, int]], padded: int, device: torch.device) -> Pass:
    source_P = torch.full((padded,), -1)
    for tile, live, taken in each:
        torch.arange(live, live + taken, out=source_P[tile.first : tile.first + taken])
    return Pass(source_P.to(device), [tile for tile, _, _ in each])


def take(x_NK: Tensor, row_L: Tensor, source_P: Tensor) -> Tensor:
    """Rows row_L[source] of x in fp32 [P,K], zero where there is none."""
    taken_PK = x_NK.index_select(0, row_L.index_select(0, source_P.clamp(min=0))).float()
    return taken_PK.index_fill_(0, (source_P < 0).nonzero()[:, 0], 0.0)  # replaced: what stands there may be NaN


class Matrices(NamedTuple):
    """[M,K] matrices by expert, one stack or a list, and the scales of their 128 x 128 blocks, or ()."""

    weight: Sequence[Tensor]
    scale: Sequence[Tensor] = ()

    @property
    def width(self) -> int:
        return self.weight[0].shape[-2]

    def sizes(self, device: torch.device) -> tuple[int, ...]:
        return sizes(BLOCK if self.scale else self.weight[0].shape[-1], self.width, device)


def common(first: Matrices, second: Matrices, device: torch.device) -> tuple[int, ...]:
    """The tile sizes that both allow."""
    return tuple(size for size in first.sizes(device) if size in second.sizes(device))


def _of(stack: Sequence[Tensor], expert: int) -> Tensor:
    return stack[0][expert] if stack[0].dim() == 3 else stack[expert]


def linear(x_PK: Tensor, scale_PB: Tensor | None, tiles: list[Tile], matrices: Matrices) -> Tensor:
    """Each tile's rows times the transposed matrix of its expert, fp32 [P, width]."""
    out_PM = x_PK.new_empty(len(x_PK), aligned(matrices.width))
    if scale_PB is not None:
        _multiply_scaled(_blocks(x_PK), scale_PB, tiles, matrices, out_PM)
    else:
        _multiply(pad(x_PK, (0, -x_PK.shape[1] % ALIGN)), tiles, matrices, out_PM)
    return out_PM[:, : matrices.width]


def put(y_PM: Tensor, row_L: Tensor, source_P: Tensor, out_NM: Tensor) -> None:
    """The way back of `take`, rounded to out's dtype; other rows of out stay."""
    here_P = (source_P >= 0).nonzero()[:, 0]
    out_NM.index_copy_(0, row_L.index_select(0, source_P[here_P]), y_PM.index_select(0, here_P).to(out_NM.dtype))


def _multiply(x_PK: Tensor, tiles: list[Tile], matrices: Matrices, out_PM: Tensor) -> None:
    ready, buffer, current = x_PK, None, -1
    for expert, first, last in tiles:
        if expert != current:
            w_mk, current = _of(matrices.weight, expert), expert
            ready, buffer = _ready(w_mk, x_PK.shape[1], out_PM.shape[1], buffer)
        torch.mm(x_PK[first:last], ready.t(), out=out_PM[first:last])


def _ready(w_mk: Tensor, depth: int, width: int, buffer: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The matrix itself where a product may read it, else a copy in fp32, padded with zeros."""
    plain = w_mk.dtype == torch.float32 and w_mk.shape == (width, depth) and w_mk.is_contiguous()
    if plain and w_mk.data_ptr() % 64 == 0:
        return w_mk, buffer
    if buffer is None:
        buffer = torch.zeros(width, depth, device=w_mk.device)
    buffer[: w_mk.shape[0], : w_mk.shape[1]].copy_(w_mk)
    return buffer, buffer


def _blocks(x_PK: Tensor) -> Tensor:
    """[P,K] -> [B,P,128], each block of K a matrix of its own, the last one padded with zeros."""
    return pad(x_PK, (0, -x_PK.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK)).transpose(0, 1).contiguous()


def _multiply_scaled(x_BPK: Tensor, scale_PB: Tensor, tiles: list[Tile], matrices: Matrices, out_PM: Tensor) -> None:
    """The sum over blocks of K, in order, of (x . w of the block) * (scale of x * scale of w)."""
    count, width = x_BPK.shape[0], out_PM.shape[1]
    w_BMK = torch.zeros(count, width, BLOCK, device=x_BPK.device)
    scale_BM = torch.zeros(count, width, device=x_BPK.device)
    part_PM = torch.empty(max(SIZES), width, device=x_BPK.device)
    current = -1
    for expert, first, last in tiles:
        if expert != current:
            code_mk, scale_mk, current = _of(matrices.weight, expert), _of(matrices.scale, expert), expert
            m, k = code_mk.shape
            code_mK = pad(code_mk.float(), (0, count * BLOCK - k))
            w_BMK[:, :m].copy_(code_mK.view(m, count, BLOCK).transpose(0, 1))
            scale_BM[:, :m].copy_(scale_mk.t().repeat_interleave(BLOCK, 1)[:, :m])
        sum_pM, part_pM = out_PM[first:last], part_PM[: last - first]
        sum_pM.zero_()
        for b in range(count):
            torch.mm(x_BPK[b, first:last], w_BMK[b].t(), out=part_pM)
            sum_pM.add_(part_pM.mul_(scale_PB[first:last, b, None] * scale_BM[b]))
