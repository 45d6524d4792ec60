"""Small inputs of lowrank that its tests share."""

import torch

from tilesieve.formats import score
from tilesieve.types import Pages, Projection, Rows, ScoreCache


def keep(width: int, columns: int | None = None) -> Projection:
    return Projection("prefix", torch.arange(columns or width), None, None, width)


def paged(keys_BLGC: torch.Tensor, format: str, page_size: int = 4, spare: int = 1) -> tuple[ScoreCache, Pages]:
    """Keys of equally long sequences in a cache, pages permuted."""
    sequences, length = keys_BLGC.shape[:2]
    each = -(-length // page_size) + spare
    table = torch.randperm(sequences * each).view(sequences, each).int()
    cache = score.new_scores(format, sequences * each, page_size, *keys_BLGC.shape[2:])
    data, scale = score.quantise(format, keys_BLGC)
    p = torch.arange(length)
    for b in range(sequences):
        cache.data[table[b, p // page_size].long(), p % page_size] = data[b]
        if scale is not None:
            cache.scale[table[b, p // page_size].long(), p % page_size] = scale[b]
    return cache, Pages(table, torch.full((sequences,), length, dtype=torch.int32), page_size, length)


def at(seq: list[int], position: list[int]) -> Rows:
    return Rows(torch.tensor(seq, dtype=torch.int32), torch.tensor(position, dtype=torch.int32))


def exact(q_RHC: torch.Tensor, keys_RLGC: torch.Tensor, scale: float) -> torch.Tensor:
    """fp64 [R,H,L], every position."""
    group = q_RHC.shape[1] // keys_RLGC.shape[2]
    return torch.einsum("rhc,rlhc->rhl", q_RHC.double(), keys_RLGC.double().repeat_interleave(group, 2)) * scale
