"""What the CPU forms of attention share: rows out of a pool, softmax over key blocks of one size.

The bits of a matrix product depend on its shape, so every product here is [B,M,D] x [B,D,BLOCK] or
[B,M,BLOCK] x [B,BLOCK,E], where B and M are fixed by the model and by constants of the caller, never
by how many rows or keys there are. Then a row's bits depend on neither. They also do not depend on
where in a product the row stands if M is a multiple of 8 and E of 16 (narrow or odd widths take
another path in the first rows than in the last: E = 5, 6, 7, 9, 10, 11 and odd M were seen to).

Letters: B heads side by side, M query rows of a product, A lists of slots, N keys listed, L keys
padded to whole blocks, D key width, E value width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 512


def padded(keys: int) -> int:
    """`keys` in whole blocks; at least one."""
    return max(1, -(-keys // BLOCK)) * BLOCK


def take(key_pPGD: Tensor, value_pPGE: Tensor, slot_AN: Tensor, head_B: Tensor) -> tuple[Tensor, Tensor]:
    """Keys [B,L,D] and values [B,L,E] in fp32 for kv heads [B] and lists of slots (one, or one per head).

    Zero where a slot is < 0, and from N to L, the whole blocks. Slots must lie in the pool.
    """
    page_size, listed = max(1, key_pPGD.shape[1]), slot_AN.shape[1]
    missing_AN = slot_AN < 0
    holes = bool(missing_AN.any())
    place_AN = slot_AN.clamp(min=0) if holes else slot_AN
    page_AN = place_AN // page_size
    offset_AN = place_AN - page_AN * page_size
    tail = padded(listed) - listed
    taken = []
    for pool_pPGC in (key_pPGD, value_pPGE):
        width = pool_pPGC.shape[3]
        steps = tuple(stride // max(1, width) for stride in pool_pPGC.stride()[:3])
        if pool_pPGC.numel() == 0 or listed == 0:
            taken_BNC = torch.zeros(len(head_B), listed, width, device=slot_AN.device)
        elif pool_pPGC.stride() == (*(step * width for step in steps), 1):
            # Whole rows, whatever the layout, are one table of rows, and index_select on it is a
            # memcpy per row: four times as fast as indexing with (page, offset, head).
            rows = 1 + sum((size - 1) * step for size, step in zip(pool_pPGC.shape[:3], steps, strict=True))
            row_BN = (page_AN * steps[0] + offset_AN * steps[1]) + head_B[:, None] * steps[2]
            table = pool_pPGC.as_strided((rows, width), (width, 1))
            taken_BNC = table.index_select(0, row_BN.flatten()).view(len(head_B), listed, width)
        else:
            taken_BNC = pool_pPGC[page_AN, offset_AN, head_B[:, None]]
        if holes:
            taken_BNC.masked_fill_(missing_AN[..., None], 0.0)
        taken_BNC = taken_BNC.float()
        taken.append(pad(taken_BNC, (0, 0, 0, tail)) if tail else taken_BNC)
    return taken[0], taken[1]


def attend(query_BMD: Tensor, key_BLD: Tensor, value_BLE: Tensor, score_BML: Tensor,
           starts: Iterable[int]) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention of scaled queries: out [B,M,E] and lse [B,M], fp32.

    score holds the mask on entry, 0 or -inf, and is overwritten. starts are the first keys of the
    blocks to look at; a block where the mask is -inf throughout may be left out: it adds exact
    zeros. Every row needs one key that is not masked. Keys and values must be finite where masked.
    """
    starts = tuple(starts)
    for start in starts:
        block = slice(start, start + BLOCK)
        # The mask goes in as the term that the product is added to: a masked_fill of the scores
        # costs as much as the product itself.
        score_BML[..., block].baddbmm_(query_BMD, key_BLD[:, block].transpose(1, 2))
    top_BM = score_BML.amax(-1)
    # softmax over a contiguous last dimension: a row's bits depend neither on other rows nor on
    # further blocks of -inf behind it.
    torch.softmax(score_BML, -1, out=score_BML)
    out_BME = torch.zeros(*query_BMD.shape[:2], value_BLE.shape[2], device=query_BMD.device)
    for start in starts:
        block = slice(start, start + BLOCK)
        out_BME.baddbmm_(score_BML[..., block], value_BLE[:, block])
    # The largest weight is 1 / sum.
    return out_BME, top_BM - score_BML.amax(-1).log()


def attend_slots(query_BMD: Tensor, key_pPGD: Tensor, value_pPGE: Tensor, slot_AN: Tensor,
                 head_B: Tensor) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`attend` over lists of slots (one, or one per head); slots < 0 are skipped, an empty list
    gives out 0 and lse -inf."""
    lists, listed = slot_AN.shape
    length = padded(listed)
    mask_AL = torch.full((lists, length), -torch.inf, device=slot_AN.device)
    valid_AN = slot_AN >= 0
    mask_AL[:, :listed].masked_fill_(valid_AN, 0.0)
    empty_A = ~valid_AN.any(-1)
    mask_AL[:, 0].masked_fill_(empty_A, 0.0)  # an empty list looks at one zero row
    score_BML = torch.empty(*query_BMD.shape[:2], length, device=slot_AN.device).copy_(mask_AL[:, None])
    key_BLD, value_BLE = take(key_pPGD, value_pPGE, slot_AN, head_B)
    out_BME, lse_BM = attend(query_BMD, key_BLD, value_BLE, score_BML, range(0, length, BLOCK))
    return out_BME, lse_BM.masked_fill_(empty_A[:, None], -torch.inf)


def settled(out_E: Tensor, lse: Tensor) -> bool:
    """No NaN and no infinity but the -inf of a row that sees nothing. Anything else (a NaN or inf that
    the row sees, an fp32 overflow) a CPU form leaves to the fp64 reference."""
    return bool(out_E.isfinite().all()) and not bool((lse.isnan() | (lse == torch.inf)).any())
