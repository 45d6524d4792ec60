"""topk without a full sort: torch.topk on int32 keys, ties across the boundary resolved where there are any.

R rows, S heads, G sets per row, L columns, K picks; N = rows x sets of one pass. Rows never meet: any
cut into passes gives the same picks.
"""

import torch
from torch import Tensor

from tilesieve.ops.slots.reference import translate
from tilesieve.ops.topk.keys import FORCED, LOWEST, NEVER, write_keys
from tilesieve.ops.topk.reference import COLUMNS, window

# Bytes that the sets of one pass may use, and what a set uses per column: eight words, for keys and what
# orders them. As in cost.py, which states what workspace that makes.
SCRATCH = 16 << 20
_COLUMN = 32
# Columns that go through the passes of `settle` together: their masks and counts stay in the cache.
_TOGETHER = 1 << 17


def compact(mask_NL: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The columns of a mask that has at most k per row: [N,k], ascending, -1 at the tail; and how many."""
    count_N = mask_NL.sum(-1)
    row, column = mask_NL.nonzero(as_tuple=True)
    place = torch.arange(len(row), device=row.device) - (count_N.cumsum(0) - count_N)[row]
    index_NK = torch.full((len(mask_NL), k), -1, device=row.device)
    index_NK[row, place] = column
    return index_NK, count_N


def settle(key_NL: Tensor, bound_N1: Tensor, k: int) -> Tensor:
    """The columns above each row's bound, and of those equal to it the first, k in all: [N,k] ascending."""
    index_NK = torch.empty(len(key_NL), k, dtype=torch.int64, device=key_NL.device)
    step = max(1, _TOGETHER // key_NL.shape[1])
    for n in range(0, len(key_NL), step):
        key, bound = key_NL[n : n + step], bound_N1[n : n + step]
        better, equal = key > bound, key == bound
        need = k - better.sum(-1, keepdim=True)
        better |= equal.logical_and_(equal.cumsum(-1, dtype=torch.int32) <= need)
        index_NK[n : n + step] = better.nonzero()[:, 1].view(-1, k)
    return index_NK


def best(key_NL: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best columns by (key descending, column ascending), in ascending order, -1 at the tail."""
    rows, columns = key_NL.shape
    if columns <= k:
        return compact(key_NL > NEVER, k)
    # One more than asked for: if the least is alone, the others are the answer. If not, which of its
    # equals torch has found is chance, and the row is settled in column order.
    value, place = key_NL.topk(k + 1, sorted=False)
    least = value.amin(-1, keepdim=True)
    dropped = value == least
    tied = ((dropped.sum(-1, keepdim=True) > 1) & (least > NEVER))[:, 0]
    if bool(tied.all()):
        return settle(key_NL, least, k), torch.full((rows,), k, device=key_NL.device)
    place = place.int().masked_fill_(dropped.logical_or_(value <= NEVER), columns)
    index = place.sort().values[:, :k]
    index = index.masked_fill_(index == columns, -1)
    count = (index >= 0).sum(-1)
    if bool(tied.any()):
        index[tied] = settle(key_NL[tied], least[tied], k).int()
        count[tied] = k
    return index, count


def force_(key_RGL: Tensor, start_R: Tensor, end_R: Tensor, first: int, last: int, fill: int) -> None:
    """Give the first and last columns of each range the key `fill`."""
    for origin_R, step, many in ((start_R, 1, first), (end_R - 1, -1, last)):
        column = origin_R[:, None] + step * torch.arange(many, device=start_R.device)
        row, nth = ((column >= start_R[:, None]) & (column < end_R[:, None])).nonzero(as_tuple=True)
        key_RGL[row, :, column[row, nth]] = fill


def thin_(key_RGL: Tensor, start_R: Tensor, local_k: int, block: int) -> None:
    """Of each block, counted from the row's start, only the best local_k stay."""
    rows, sets, width = key_RGL.shape
    blocks = -(-width // block)
    columns = torch.arange(blocks * block, device=key_RGL.device)
    from_R = start_R[:, None] + columns  # block by block, past the width at the end
    past = (from_R >= width)[:, None]
    turned = key_RGL.gather(-1, from_R.clamp(max=width - 1)[:, None].expand(-1, sets, -1))
    turned.masked_fill_(past, LOWEST)
    index, _ = best(turned.view(-1, block), min(local_k, block))
    stays = torch.zeros(len(index), block + 1, dtype=torch.bool, device=index.device)
    stays.scatter_(1, torch.where(index < 0, block, index), True)
    stays = stays[:, :block].reshape(rows, sets, -1)
    back = (columns[:width] - start_R[:, None]).clamp(min=0)[:, None].expand(-1, sets, -1)
    key_RGL.masked_fill_(~stays.gather(-1, back), LOWEST)


def topk(scores_RSL: Tensor, k: int, start_R: Tensor | None, end_R: Tensor | None, sets: int, reduce: str, first: int,
         last: int, local_k: int | None, block: int, table_BM: Tensor | None, length_B: Tensor | None, page_size: int,
         seq_R: Tensor | None, position_R: Tensor | None, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    index_RGK, count_RG, slot_RGK = out
    rows, heads, width = scores_RSL.shape
    start_R, end_R = window(rows, width, start_R, end_R, length_B, seq_R, position_R, scores_RSL.device)
    if local_k is not None and local_k >= min(k, block):
        local_k = None  # what is among the k best of the row is among the k best of its block
    per = heads // sets if sets else 0
    at_once = max(1, SCRATCH // (_COLUMN * max(width, COLUMNS)))
    step_G = max(1, min(sets, at_once))
    step_R = max(1, min(rows, at_once // step_G))
    buffer = torch.empty(step_R * step_G * width, dtype=torch.int32, device=scores_RSL.device)
    for r in range(0, rows if sets else 0, step_R):
        part_R = slice(r, min(r + step_R, rows))
        start_r, end_r = start_R[part_R], end_R[part_R]
        reach = int(end_r.max())  # columns past every row's range are not looked at
        for g in range(0, sets, step_G):
            index_rgk, count_rg = (t[part_R, g : g + step_G] for t in (index_RGK, count_RG))
            if reach == 0:
                index_rgk.fill_(-1)
                count_rg.zero_()
                continue
            key_rgl = buffer[: count_rg.numel() * reach].view(*count_rg.shape, reach)
            x_rghl = scores_RSL[part_R, g * per : (g + step_G) * per, :reach].unflatten(1, (-1, per))
            write_keys(x_rghl, start_r, end_r, reduce, reach > k or local_k is not None, key_rgl)
            if local_k is not None:
                force_(key_rgl, start_r, end_r, first, last, LOWEST)  # they take no place of a block's best
                thin_(key_rgl, start_r, local_k, min(block, reach))
            force_(key_rgl, start_r, end_r, first, last, FORCED)
            fits = min(k, reach)
            index, count = best(key_rgl.view(-1, reach), fits)
            index_rgk[..., :fits] = index.view(*count_rg.shape, fits)
            index_rgk[..., fits:] = -1
            count_rg.copy_(count.view(count_rg.shape))
    if table_BM is not None and length_B is not None and seq_R is not None and position_R is not None:
        translate(index_RGK, count_RG, table_BM, length_B, page_size, seq_R, position_R, slot_RGK)
