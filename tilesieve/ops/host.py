"""What the CPU forms of attention share: rows out of a pool, softmax over key blocks of one size.

The bits of a matrix product depend on its shape, so every product here is [B,M,D] x [B,D,BLOCK] or
[B,M,BLOCK] x [B,BLOCK,E], where B and M are fixed by the model and by constants of the caller, never
by how many rows or keys there are. Then a row's bits depend on neither.

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


def take(pool_pPGC: Tensor, slot_AN: Tensor, head_B: Tensor) -> Tensor:
    """Rows of a paged pool in fp32: [B,N,C] for kv heads [B] and lists of slots (one, or one per head).

    Where a slot is < 0 the row is zero. Slots must lie in the pool.
    """
    page_size, width = pool_pPGC.shape[1], pool_pPGC.shape[3]
    if pool_pPGC.numel() == 0:
        return torch.zeros(len(head_B), slot_AN.shape[1], width, device=slot_AN.device)
    slot_BN = slot_AN.clamp(min=0).expand(len(head_B), -1)
    page_BN, offset_BN = slot_BN // page_size, slot_BN % page_size
    steps = [stride // width for stride in pool_pPGC.stride()[:3]]
    if pool_pPGC.stride() == (*(step * width for step in steps), 1):
        # Whole rows, whatever the layout, are one table of rows, and index_select on it is a memcpy
        # per row: four times as fast as indexing with (page, offset, head).
        rows = 1 + sum((size - 1) * step for size, step in zip(pool_pPGC.shape[:3], steps, strict=True))
        row_BN = page_BN * steps[0] + offset_BN * steps[1] + head_B[:, None] * steps[2]
        table = pool_pPGC.as_strided((rows, width), (width, 1))
        taken_BNC = table.index_select(0, row_BN.flatten()).view(*row_BN.shape, width)
    else:
        taken_BNC = pool_pPGC[page_BN, offset_BN, head_B[:, None]]
    missing_AN = slot_AN < 0
    if bool(missing_AN.any()):
        taken_BNC.masked_fill_(missing_AN[..., None], 0.0)
    return taken_BNC.float()


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
    length = padded(slot_AN.shape[1])
    slot_AL = pad(slot_AN, (0, length - slot_AN.shape[1]), value=-1)
    missing_AL = slot_AL < 0
    empty_A = missing_AL.all(-1)
    mask_AL = torch.zeros(slot_AL.shape, device=slot_AL.device).masked_fill_(missing_AL, -torch.inf)
    mask_AL[:, 0].masked_fill_(empty_A, 0.0)  # an empty list looks at one zero row
    score_BML = torch.empty(*query_BMD.shape[:2], length, device=slot_AL.device).copy_(mask_AL[:, None])
    key_BLD, value_BLE = take(key_pPGD, slot_AL, head_B), take(value_pPGE, slot_AL, head_B)
    out_BME, lse_BM = attend(query_BMD, key_BLD, value_BLE, score_BML, range(0, length, BLOCK))
    return out_BME, lse_BM.masked_fill_(empty_A[:, None], -torch.inf)


def settled(out_E: Tensor, lse: Tensor) -> bool:
    """No NaN and no infinity but the -inf of a row that sees nothing. Anything else (a NaN or inf that
    the row sees, an fp32 overflow) a CPU form leaves to the fp64 reference."""
    return bool(out_E.isfinite().all()) and not bool((lse.isnan() | (lse == torch.inf)).any())
