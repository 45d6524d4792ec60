"""lowrank in matrix products of one fixed shape.

Rows are grouped by sequence, in tiles of so many rows that their (row, head) pairs are at most
_PAIRS; keys come in blocks of _BLOCK. So whatever the batch, a row meets products of the same
shape and keeps its bits. A chunk of keys is gathered and converted once for all rows of its
sequence, so memory beyond the result is _CHUNK keys and the queries in fp32, and one product.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tilesieve.formats.score import quantise, reduce
from tilesieve.ops.lowrank.reference import visible

# At most _PAIRS x 512: with many rows near the rate of larger products, while a single decode row
# pays for no more than _PAIRS pairs.
_PAIRS = 96
_BLOCK = 512
_CHUNK = 8 * _BLOCK


def lowrank(q_RHD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, data: Tensor, key_scale: Tensor | None,
            format: str, table_BM: Tensor, length_B: Tensor, max_length: int, seq_R: Tensor, position_R: Tensor,
            scale: float, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_RHL,) = out
    heads, kv_heads = q_RHD.shape[1], data.shape[2]
    limits = visible(table_BM, length_B, data.shape[1], max_length, seq_R, position_R).tolist()
    if not heads or not len(data) or not any(limits):
        out_RHL.fill_(-torch.inf)
        return
    per = heads // kv_heads
    codes_RGJC, q_scale_RGJ = quantise(format, reduce(q_RHD.unflatten(1, (kv_heads, per)), dims_C, basis_GDC, None))
    q_RGJC, factor_RGJ = codes_RGJC.float(), None
    if q_scale_RGJ is None:
        q_RGJC = q_RGJC * scale
    elif format == "score_int8":  # codes meet codes: the products are exact, scales come after
        factor_RGJ = q_scale_RGJ * scale
    else:
        q_RGJC = q_RGJC * (q_scale_RGJ * scale)[..., None]

    by_seq: dict[int, list[int]] = {}
    for row, (seq, limit) in enumerate(zip(seq_R.tolist(), limits, strict=True)):
        if limit:
            by_seq.setdefault(seq, []).append(row)
        else:
            out_RHL[row] = -torch.inf
    # A power of two, so that batches of 32, 64, 128 rows leave no tile short.
    group = 1 << max(1, _PAIRS // per).bit_length() - 1
    product = q_RGJC.new_empty(kv_heads, group * per, _BLOCK)
    for seq, rows in by_seq.items():
        tiles = [_Tile(rows[i : i + group], limits, group, q_RGJC, factor_RGJ) for i in range(0, len(rows), group)]
        table = table_BM[seq].long()
        for start, block in _blocks(data, key_scale, table, max(t.longest for t in tiles), factor_RGJ is not None):
            for tile in tiles:
                if start < tile.longest:
                    tile.score(start, *block, product, out_RHL)
        for tile in tiles:
            out_RHL[tile.place, :, -(-tile.longest // _BLOCK) * _BLOCK :] = -torch.inf


def _blocks(data: Tensor, key_scale: Tensor | None, table: Tensor, longest: int,
            exact: bool) -> Iterator[tuple[int, tuple[Tensor, Tensor | None, Tensor | None]]]:  # fmt: skip
    """(start, (keys [G,C,_BLOCK] fp32, their scales [G,_BLOCK] if exact, which are holes [_BLOCK])).

    What stands past `longest` in the last block is anything: no row sees it.
    """
    pages, page_size, kv_heads, columns = data.shape
    size = min(_CHUNK, -(-longest // _BLOCK) * _BLOCK)
    key_GSC = torch.zeros(kv_heads, size, columns, device=data.device)
    scale_GS = torch.zeros(kv_heads, size, device=data.device)
    for first in range(0, longest, _CHUNK):
        last = min(first + _CHUNK, longest)
        page = table[first // page_size : -(-last // page_size)]
        hole = (page < 0) | (page >= pages)
        page = page.where(~hole, 0)
        inside = slice(first % page_size, first % page_size + last - first)
        key_GSC[:, : last - first] = data[page].flatten(0, 1)[inside].transpose(0, 1)
        if key_scale is not None:
            scale_GS[:, : last - first] = key_scale[page].flatten(0, 1)[inside].T
            if not exact:
                key_GSC *= scale_GS[..., None]
        hole_S = None
        if bool(hole.any()):
            hole_S = torch.zeros(size, dtype=torch.bool, device=data.device)
            hole_S[: last - first] = hole.repeat_interleave(page_size)[inside]
        for start in range(first, last, _BLOCK):
            part = slice(start - first, start - first + _BLOCK)
            yield start, (key_GSC[:, part].transpose(1, 2), scale_GS[:, part] if exact else None,
                          None if hole_S is None else hole_S[part])  # fmt: skip


class _Tile:
    """Rows of one sequence, their (row, head) pairs as one matrix per kv head, zeros below."""

    def __init__(self, rows: list[int], limits: list[int], group: int, q_RGJC: Tensor,
                 factor_RGJ: Tensor | None) -> None:  # fmt: skip
        mine = [limits[row] for row in rows]
        consecutive = rows[-1] - rows[0] == len(rows) - 1
        self.place: slice | list[int] = slice(rows[0], rows[-1] + 1) if consecutive else rows
        self.longest, self.shortest = max(mine), min(mine)
        self.limit_T111 = torch.tensor(mine, device=q_RGJC.device)[:, None, None, None]
        kv_heads, per, columns = q_RGJC.shape[1:]
        self.shape = (len(rows), kv_heads, per)
        self.q_GMC = q_RGJC.new_zeros(kv_heads, group * per, columns)
        self.q_GMC[:, : len(rows) * per] = q_RGJC[self.place].transpose(0, 1).flatten(1, 2)
        self.factor_TGJ1 = None if factor_RGJ is None else factor_RGJ[self.place][..., None]

    def score(self, start: int, key_GCB: Tensor, scale_GB: Tensor | None, hole_B: Tensor | None, product_GMB: Tensor,
              out_RHL: Tensor) -> None:  # fmt: skip
        """Columns start to start + _BLOCK of the tile's rows."""
        rows, kv_heads, per = self.shape
        end = min(start + _BLOCK, out_RHL.shape[2])
        torch.bmm(self.q_GMC, key_GCB, out=product_GMB)
        score_GTJB = product_GMB[:, : rows * per, : end - start].unflatten(1, (rows, per))
        if scale_GB is not None:
            score_GTJB *= scale_GB[:, None, None, : end - start]
        score_TGJB = score_GTJB.transpose(0, 1)
        if isinstance(self.place, slice):
            target_TGJB = out_RHL[self.place, :, start:end].unflatten(1, (kv_heads, per))
        else:
            target_TGJB = torch.empty(*self.shape, end - start, device=out_RHL.device)
        if self.factor_TGJ1 is None:
            target_TGJB.copy_(score_TGJB)
        else:
            torch.mul(score_TGJB, self.factor_TGJ1, out=target_TGJB)
        if self.shortest < end or hole_B is not None:
            hidden_T11B = torch.arange(start, end, device=out_RHL.device) >= self.limit_T111
            if hole_B is not None:
                hidden_T11B = hidden_T11B | hole_B[: end - start]
            # Filled, not added: what a hidden key gave may be NaN.
            target_TGJB.masked_fill_(hidden_T11B, -torch.inf)
        if not isinstance(self.place, slice):
            out_RHL[self.place, :, start:end] = target_TGJB.flatten(1, 2)
