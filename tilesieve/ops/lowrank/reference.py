"""lowrank, one row at a time. R rows, H heads, G kv heads, J = H / G, D width, C reduced width,
L columns, B sequences, K visible keys."""

import torch
from torch import Tensor

from tilesieve.formats.score import quantise
from tilesieve.ops.score_append.reference import reduced


def visible(table_BM: Tensor, length_B: Tensor, page_size: int, max_length: int, seq_R: Tensor,
            position_R: Tensor) -> Tensor:  # fmt: skip
    """int64 [R]: how many leading positions of its sequence each row sees."""
    most = min(max_length, table_BM.shape[1] * page_size)
    known_R = (seq_R >= 0) & (seq_R < len(length_B))
    if not len(length_B):
        return torch.zeros_like(seq_R, dtype=torch.int64)
    length_R = length_B[torch.where(known_R, seq_R, 0).long()].long()
    limit_R = torch.minimum(position_R.long() + 1, length_R).clamp(0, most)
    return torch.where(known_R, limit_R, 0)


def lowrank(q_RHD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, data: Tensor, key_scale: Tensor | None,
            format: str, table_BM: Tensor, length_B: Tensor, max_length: int, seq_R: Tensor, position_R: Tensor,
            scale: float) -> Tensor:  # fmt: skip
    rows, heads, width = q_RHD.shape
    pages, page_size, kv_heads, columns = data.shape
    scores_RHL = torch.full((rows, heads, max_length), -torch.inf, device=q_RHD.device)
    limits = visible(table_BM, length_B, page_size, max_length, seq_R, position_R).tolist()
    for row, limit in enumerate(limits):
        table = table_BM[seq_R[row]].tolist() if limit else []
        seen = [p for p in range(limit) if 0 <= table[p // page_size] < pages]
        if not seen or not heads:
            continue
        page_K = torch.tensor([table[p // page_size] for p in seen], device=data.device)
        offset_K = torch.tensor([p % page_size for p in seen], device=data.device)
        key_GCK = data[page_K, offset_K].permute(1, 2, 0)
        q_GJD = q_RHD[row].reshape(kv_heads, heads // kv_heads, width)
        codes_GJC, q_scale_GJ = quantise(format, reduced(q_GJD, dims_C, basis_GDC, None))
        if key_scale is None or q_scale_GJ is None:
            score_GJK = (torch.bmm(codes_GJC.double(), key_GCK.double()) * scale).float()
        else:
            k_scale_GK = key_scale[page_K, offset_K].T
            if format == "score_int8":
                # fp64 holds the integer sum exactly, and a GPU has no integer product.
                sum_GJK = torch.bmm(codes_GJC.double(), key_GCK.double()).float()
                # The order of these products is part of the contract.
                score_GJK = (sum_GJK * k_scale_GK[:, None]) * (q_scale_GJ * scale)[..., None]
            else:
                sum_GJK = torch.bmm(codes_GJC.double(), key_GCK.double())
                both_GJK = q_scale_GJ.double()[..., None] * k_scale_GK.double()[:, None]
                score_GJK = (sum_GJK * both_GJK * scale).float()
        scores_RHL[row][:, seen] = score_GJK.reshape(heads, len(seen))
    return scores_RHL
