"""sparse_gqa_prefill: the selection as a mask over the keys of a sequence, a tile of rows at a time.

A sequence's keys are gathered once per call. A row's bits do not depend on the rows of its tile:
products have fixed shapes, and a block of keys that a row did not select adds exact zeros to it.

Letters as in the reference, and: g query heads per kv head, T rows of a tile, L keys in whole
blocks, J lists that one kv head looks at (1 or g).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tilesieve.ops.gqa_decode.reference import visible_slots, with_sink
from tilesieve.ops.host import BLOCK, attend, padded, settled, take
from tilesieve.ops.sparse_gqa_prefill import reference


def tile_rows(g: int) -> int:
    """Rows of a tile: fixed by the model, so that a product has at most 256 query rows. That is where
    it runs at its rate, and the scores of one kv head against 4096 keys stay below 4 MiB."""
    return next((rows for rows in (64, 32, 16) if rows * g <= 256), 8)


@dataclass(frozen=True)
class Keys:
    """One sequence: key [G,L,D] and value [G,L,E] in fp32, zero where no row may look (hidden [L]) and
    where either is not finite (bad [G,L]). hidden and bad are None where nothing is."""

    key: Tensor
    value: Tensor
    hidden: Tensor | None
    bad: Tensor | None


@dataclass(frozen=True)
class Mask:
    """What a tile's rows select under one kv head: bias fp32 [J,T,L], 0 or -inf; starts: the blocks in
    which some row selects something; empty bool [J,T]: lists with nothing, which look at key 0."""

    bias: Tensor
    starts: tuple[int, ...]
    empty: Tensor


def read(key_pPGD: Tensor, value_pPGE: Tensor, slot_n: Tensor) -> Keys:
    length = padded(len(slot_n))
    slot_L = torch.nn.functional.pad(slot_n, (0, length - len(slot_n)), value=-1)
    head_G = torch.arange(key_pPGD.shape[2], device=slot_n.device)
    key_GLD, value_GLE = (take(pool, slot_L[None], head_G) for pool in (key_pPGD, value_pPGE))
    bad_GL = None
    for rows in (key_GLD, value_GLE):
        # One pass that allocates nothing; only where it finds something a second that says where.
        if rows.numel() and not all(bool(bound.isfinite()) for bound in rows.aminmax()):
            here_GL = ~rows.isfinite().all(-1)
            bad_GL = here_GL if bad_GL is None else bad_GL | here_GL
    if bad_GL is not None:
        # A weight of zero times NaN is NaN: rows that select such a key are the reference's.
        key_GLD.masked_fill_(bad_GL[..., None], 0.0)
        value_GLE.masked_fill_(bad_GL[..., None], 0.0)
    return Keys(key_GLD, value_GLE, slot_L < 0 if bool((slot_n < 0).any()) else None, bad_GL)


def mask(index_TJK: Tensor, valid_TJK: Tensor, length: int, tile: int, hidden_L: Tensor | None) -> Mask:
    """The rows past T, up to `tile`, are empty."""
    rows, lists, _ = index_TJK.shape
    bias_JTL = torch.full((lists, tile, length + 1), -torch.inf, device=index_TJK.device)
    place_JTK = torch.where(valid_TJK, index_TJK, length).long().transpose(0, 1)
    bias_JTL[:, :rows].scatter_(2, place_JTK, 0.0)  # a duplicate writes the same 0 again
    bias_JTL = bias_JTL[..., :length]
    if hidden_L is not None:
        bias_JTL.masked_fill_(hidden_L, -torch.inf)
    best_JTb = bias_JTL.unflatten(2, (-1, BLOCK)).amax(-1)
    starts = tuple(b * BLOCK for b in (best_JTb.amax((0, 1)) == 0).nonzero().flatten().tolist())
    empty_JT = best_JTb.amax(-1) < 0
    bias_JTL[..., 0].masked_fill_(empty_JT, 0.0)
    return Mask(bias_JTL, starts or (0,), empty_JT)


def sparse_gqa_prefill(q_RHD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, table_Bm: Tensor, length_B: Tensor,
                       max_length: int, seq_R: Tensor, position_R: Tensor, index_RAK: Tensor, count_RA: Tensor,
                       scale: float, sink_H: Tensor | None, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    out_RHE, lse_RH = out
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    tile = tile_rows(q_RHD.shape[1] // kv_heads)
    position = position_R.tolist()
    members: dict[int, list[int]] = {}
    for r, seq in enumerate(seq_R.tolist()):
        members.setdefault(seq, []).append(r)
    for seq, rows in members.items():
        last = max(position[r] for r in rows)
        keys = read(
            key_pPGD, value_pPGE, visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, last)
        )  # fmt: skip
        for start in range(0, len(rows), tile):
            row_T = torch.tensor(rows[start : start + tile], device=q_RHD.device)
            seen_T = visible_counts(...)
