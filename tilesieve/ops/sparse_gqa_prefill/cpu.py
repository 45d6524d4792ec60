"""sparse_gqa_prefill: the selection as a mask over the keys of a sequence, a tile of rows at a time.

A sequence's keys are gathered once per call. A row's bits do not depend on the rows of its tile:
products have fixed shapes, and a block of keys that a row did not select adds exact zeros to it.

Letters as in the reference, and: g query heads per kv head, T rows of a tile, L keys in whole
blocks, J lists that one kv head looks at (1 or g).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from tilesieve.ops.gqa_decode.reference import visible_slots, with_sink
from tilesieve.ops.host import BLOCK, attend, settled, take
from tilesieve.ops.sparse_gqa_prefill import reference

# Up to here in queries and keys no product of theirs leaves fp32, selected or not. Beyond, whether a
# masked score is -inf + inf would depend on which blocks the other rows of a tile bring along.
LARGE = 2.0**56


def tile_rows(g: int) -> int:
    """Rows of a tile: fixed by the model, so that a product has at most 256 query rows. That is where
    it runs at its rate, and the scores of one kv head against 4096 keys stay below 4 MiB."""
    return next((rows for rows in (64, 32, 16) if rows * g <= 256), 8)


@dataclass(frozen=True)
class Keys:
    """One sequence: key [G,L,D] and value [G,L,E] in fp32, zero where no row may look (hidden [L]) and
    where a key is beyond LARGE or either is not finite (bad [G,L]). hidden and bad are None where
    nothing is. E is padded to a multiple of 16 (see ops/host.py)."""

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
    head_G = torch.arange(key_pPGD.shape[2], device=slot_n.device)
    key_GLD, value_GLE = take(key_pPGD, value_pPGE, slot_n[None], head_G)
    bad_GL = None
    for rows, limit in ((key_GLD, LARGE), (value_GLE, torch.finfo(torch.float32).max)):
        # One pass that allocates nothing; only where it finds something a second that says where.
        if rows.numel() and not all(abs(float(bound)) <= limit for bound in rows.aminmax()):
            here_GL = ~(rows.abs() <= limit).all(-1)
            bad_GL = here_GL if bad_GL is None else bad_GL | here_GL
    if bad_GL is not None:
        # A weight of zero times NaN is NaN: rows that select such a key are the reference's.
        key_GLD.masked_fill_(bad_GL[..., None], 0.0)
        value_GLE.masked_fill_(bad_GL[..., None], 0.0)
    if value_GLE.shape[2] % 16:
        value_GLE = pad(value_GLE, (0, -value_GLE.shape[2] % 16))
    hidden_L = None
    if bool((slot_n < 0).any()):
        hidden_L = pad(slot_n < 0, (0, key_GLD.shape[1] - len(slot_n)), value=True)
    return Keys(key_GLD, value_GLE, hidden_L, bad_GL)


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
        slot_n = visible_slots(table_Bm, length_B, max_length, page_size, pages, seq, last)
        keys = read(key_pPGD, value_pPGE, slot_n)
        for start in range(0, len(rows), tile):
            row_T = torch.tensor(rows[start : start + tile], device=q_RHD.device)
            seen_T = (position_R[row_T].long() + 1).clamp(0, len(slot_n))
            query_THD = q_RHD[row_T].float() * scale
            out_THE, lse_TH, tainted_T = attend_tile(query_THD, keys, index_RAK[row_T], count_RA[row_T], seen_T, tile)
            out_THE = with_sink(out_THE[..., : out_RHE.shape[2]], lse_TH, sink_H)
            out_RHE[row_T], lse_RH[row_T] = out_THE, lse_TH
            if not bool(tainted_T.any()) and settled(out_THE, lse_TH):
                continue
            for t, r in enumerate(row_T.tolist()):
                if bool(tainted_T[t]) or not settled(out_THE[t], lse_TH[t]):
                    one = slice(r, r + 1)
                    out_RHE[one], lse_RH[one] = reference.sparse_gqa_prefill(
                        q_RHD[one], key_pPGD, value_pPGE, table_Bm, length_B, max_length, seq_R[one],
                        position_R[one], index_RAK[one], count_RA[one], scale, sink_H,
                    )  # fmt: skip


def attend_tile(query_THD: Tensor, keys: Keys, index_TAK: Tensor, count_TA: Tensor, seen_T: Tensor,
                tile: int) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """out [T,H,E], lse [T,H], and which rows [T] the reference must do: their query is beyond LARGE, or
    they select a bad key."""
    (rows, heads, width), (kv_heads, length, value_width) = query_THD.shape, keys.value.shape
    g, lists = heads // kv_heads, index_TAK.shape[1]
    each = max(1, lists // kv_heads)  # lists that one kv head looks at
    counted_TAK = torch.arange(index_TAK.shape[2], device=index_TAK.device) < count_TA[..., None]
    valid_TAK = counted_TAK & (index_TAK >= 0) & (index_TAK < seen_T[:, None, None])
    out_THE = query_THD.new_empty(rows, heads, value_width)
    lse_TH = query_THD.new_empty(rows, heads)
    tainted_T = ~(query_THD.abs() <= LARGE).flatten(1).all(1)
    query_gTD = query_THD.new_zeros(g, tile, width)
    memory = query_THD.new_empty(g * tile * length)
    for h in range(kv_heads):
        heads_read = slice(h * g, h * g + g)
        if h == 0 or lists > 1:
            mine = slice(h * each, h * each + each)
            chosen = mask(index_TAK[:, mine], valid_TAK[:, mine], length, tile, keys.hidden)
        query_gTD[:, :rows] = query_THD[:, heads_read].transpose(0, 1)
        columns = chosen.starts[-1] + BLOCK
        score_gTL = memory[: g * tile * columns].view(g, tile, columns)
        score_gTL.copy_(chosen.bias[..., :columns])
        one = slice(h, h + 1)
        out_gTE, lse_gT = attend(
            query_gTD.view(1, g * tile, width), keys.key[one], keys.value[one], score_gTL.view(1, g * tile, columns),
            chosen.starts,
        )  # fmt: skip
        out_gTE = out_gTE.view(g, tile, value_width).masked_fill_(chosen.empty[..., None], 0.0)
        lse_gT = lse_gT.view(g, tile).masked_fill_(chosen.empty, -torch.inf)
        out_THE[:, heads_read] = out_gTE[:, :rows].transpose(0, 1)
        lse_TH[:, heads_read] = lse_gT[:, :rows].T
        if keys.bad is not None:
            bad_JT = ((chosen.bias == 0) & keys.bad[h]).any(-1) & ~chosen.empty
            tainted_T |= bad_JT[:, :rows].any(0)
    return out_THE, lse_TH, tainted_T
