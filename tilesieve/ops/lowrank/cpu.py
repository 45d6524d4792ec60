"""lowrank in matrix products of one fixed shape.

Rows are grouped by sequence; their (row, head) pairs fill tiles of _PAIRS, zero where a tile is
short; keys come in blocks of _BLOCK, zero past the end. So whatever the batch, a row meets the
same products in the same order and keeps its bits. A chunk of keys is gathered and converted
once for all rows of its sequence.

Extra memory: _CHUNK keys in fp32 and one product; nothing grows with R * L but the result.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tilesieve.formats.score import quantise, reduce
from tilesieve.ops.lowrank.reference import visible

# 64 x 512: near the machine's best rate for many rows (131 of 141 GFLOP/s at G = 3, C = 64, two
# cores), and one decode row pays for no more than 64 / J rows.
_PAIRS = 64
_BLOCK = 512
_CHUNK = 8 * _BLOCK


def lowrank(q_RHD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, data: Tensor, key_scale: Tensor | None,
            format: str, table_BM: Tensor, length_B: Tensor, max_length: int, seq_R: Tensor, position_R: Tensor,
            scale: float, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    (out_RHL,) = out
    heads, width = q_RHD.shape[1:]
    kv_heads = data.shape[2]
    limits = visible(table_BM, length_B, data.shape[1], max_length, seq_R, position_R).tolist()
    if not heads or not any(limits):
        out_RHL.fill_(-torch.inf)
        return
    by_seq: dict[int, list[int]] = {}
    for row, (seq, limit) in enumerate(zip(seq_R.tolist(), limits, strict=True)):
        if limit:
            by_seq.setdefault(seq, []).append(row)
        else:
            out_RHL[row] = -torch.inf
    per = heads // kv_heads
    codes_RGJC, q_scale_RGJ = quantise(format, reduce(q_RHD.unflatten(1, (kv_heads, per)), dims_C, basis_GDC, None))
    exact = format == "score_int8"
    q_RGJC = codes_RGJC.float()
    factor_RGJ = None if q_scale_RGJ is None else q_scale_RGJ * scale
    if factor_RGJ is None:
        q_RGJC = q_RGJC * scale
    elif not exact:
        q_RGJC = q_RGJC * factor_RGJ[..., None]

    group = max(1, _PAIRS // per)
    product = q_RGJC.new_empty(kv_heads, max(_PAIRS, per), _BLOCK)
    for seq, rows in by_seq.items():
        tiles = [Tile(rows[i : i + group], limits, q_RGJC, factor_RGJ if exact else None)
                 for i in range(0, len(rows), group)]  # fmt: skip
        longest = max(tile.longest for tile in tiles)
        for start, key_GBC, k_scale_GB, hole_B in _blocks(data, key_scale, table_BM[seq], longest, exact):
            end = min(start + _BLOCK, max_length)
            for tile in tiles:
                if tile.longest <= start:
                    continue
                torch.bmm(tile.q_GMC, key_GBC.transpose(1, 2), out=product)
                if k_scale_GB is not None and tile.factor_GM is not None:
                    product.mul_(k_scale_GB[:, None]).mul_(tile.factor_GM[..., None])
                score_GTJB = product[:, : tile.pairs, : end - start].unflatten(1, (len(tile.rows), per))
                if tile.shortest < end or hole_B is not None:
                    score_GTJB.masked_fill_(tile.hidden(start, end, hole_B), -torch.inf)
                out_RHL[tile.place, :, start:end].unflatten(1, (kv_heads, per))[:] = score_GTJB.transpose(0, 1)
