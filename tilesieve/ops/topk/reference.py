"""topk, one row and one set at a time, by a full stable sort.

R rows, S scoring heads, G sets per row, H = S / G heads of a set, L columns, K picks, B sequences.
The picks must be the same for every implementation, so this is in fp32: the reduced scores are fixed
to the bit (torch's softmax, heads added in ascending order), and only comparisons follow.
"""

import torch
from torch import Tensor

from tilesieve.ops.slots.reference import slots

LARGEST = torch.finfo(torch.float32).max
# torch's softmax of fewer columns than a vector register adds them up in another order, and a row's
# bits would depend on its padding. 64 is above every register.
COLUMNS = 64


def window(rows: int, width: int, start_R: Tensor | None, end_R: Tensor | None, length_B: Tensor | None,
           seq_R: Tensor | None, position_R: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Each row's range [start, end) of columns, int64 [R]; 0, 0 where it is empty."""
    start = torch.zeros(rows, dtype=torch.int64, device=device) if start_R is None else start_R.long().clamp(min=0)
    end = torch.full((rows,), width, device=device) if end_R is None else end_R.long().clamp(max=width)
    if length_B is not None and seq_R is not None and position_R is not None:
        sequences = len(length_B)
        known = (seq_R >= 0) & (seq_R < sequences)
        # One more length, so that a pool without sequences can be asked too.
        length_R = torch.cat([length_B.long(), length_B.new_zeros(1).long()])[seq_R.long().clamp(0, sequences)]
        sees = torch.where(known, torch.minimum(length_R, position_R.long() + 1), 0)
        end = torch.minimum(end, sees)
    none = start >= end
    return start.masked_fill(none, 0), end.masked_fill(none, 0)


def masses(x_HL: Tensor) -> Tensor:
    """The probability mass of each column, summed over the heads in ascending order: fp32 [L]."""
    columns = x_HL.shape[1]
    # A plain comparison, so that NaN becomes -inf too.
    x_HL = torch.where(x_HL > -torch.inf, x_HL, -torch.inf).clamp(max=LARGEST)
    padded = torch.nn.functional.pad(x_HL, (0, max(0, COLUMNS - columns)), value=-torch.inf)
    total_L = torch.zeros(columns, dtype=torch.float32, device=x_HL.device)
    for row_L in padded:
        if bool((row_L > -torch.inf).any()):
            total_L = total_L + torch.softmax(row_L, 0)[:columns]
    return total_L


def reduced(x_HL: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """One score per column, and which columns may be picked at all."""
    if x_HL.shape[0] == 1:
        value_L = x_HL[0]
    elif reduce == "mass":
        return masses(x_HL), (x_HL > -torch.inf).any(0)
    else:
        value_L = x_HL[0]
        for row_L in x_HL[1:]:
            value_L = value_L + row_L if reduce == "sum" else torch.fmax(value_L, row_L)
    return value_L, value_L > -torch.inf


def topk(scores_RSL: Tensor, k: int, start_R: Tensor | None, end_R: Tensor | None, sets: int, reduce: str, first: int,
         last: int, local_k: int | None, block: int, table_BM: Tensor | None, length_B: Tensor | None, page_size: int,
         seq_R: Tensor | None, position_R: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, heads, width = scores_RSL.shape
    device = scores_RSL.device
    start_R, end_R = window(rows, width, start_R, end_R, length_B, seq_R, position_R, device)
    index_RGK = torch.full((rows, sets, k), -1, dtype=torch.int32, device=device)
    count_RG = torch.zeros(rows, sets, dtype=torch.int32, device=device)
    per = heads // sets if sets else 0
    for r, (start, end) in enumerate(zip(start_R.tolist(), end_R.tolist(), strict=True)):
        forced = {*range(start, min(start + first, end)), *range(max(end - last, start), end)}
        for g in range(sets if end > start else 0):
            # Columns before the range stay in the softmax as -inf: they fix where in a register a column stands.
            x_HL = scores_RSL[r, g * per : (g + 1) * per, :end].clone()
            x_HL[:, :start] = -torch.inf
            value_L, pickable_L = reduced(x_HL, reduce)
            order = value_L.sort(descending=True, stable=True).indices
            ranked = [c for c in order[pickable_L[order]].tolist() if c not in forced]
            if local_k is not None:
                taken: dict[int, int] = {}
                kept = []
                for column in ranked:
                    of = (column - start) // block
                    taken[of] = taken.get(of, 0) + 1
                    if taken[of] <= local_k:
                        kept.append(column)
                ranked = kept
            picks = sorted([*forced, *ranked[: k - len(forced)]])
            index_RGK[r, g, : len(picks)] = torch.tensor(picks, dtype=torch.int32, device=device)
            count_RG[r, g] = len(picks)
    if table_BM is None or length_B is None or seq_R is None or position_R is None:
        return index_RGK, count_RG, torch.empty(rows, sets, 0, dtype=torch.int64, device=device)
    return index_RGK, count_RG, slots(index_RGK, count_RG, table_BM, length_B, page_size, seq_R, position_R)
