"""How many contiguous copies a list of slots is."""

import torch
from torch import Tensor

from tilesieve.types import Slots


def contiguous_runs(slots: Slots, *, page_size: int | None = None) -> Tensor:
    """int32 [R] or [R,G]: runs of consecutive slots (s, s + 1, s + 2, ...) as they are listed.

    A run of n slots is one contiguous copy: of n * G * D numbers in a token-major cache that all
    heads read alike, of n * D numbers of one head in a head-major cache (see cost.py). Entries past
    the count or < 0 belong to no run and end the one before. With page_size a run also ends with
    its page: say it for head-major caches, and where pages do not lie side by side.

    Ascending order gives the fewest runs a list of distinct slots can have.

    Raises ValueError for a page_size < 1, or where slot and count do not fit.
    """
    if page_size is not None and page_size < 1:
        raise ValueError(f"page_size is {page_size}; allowed: an integer >= 1")
    slot, count = slots.slot, slots.count
    if slot.shape[:-1] != count.shape:
        raise ValueError(
            f"count has shape {tuple(count.shape)}; slot {tuple(slot.shape)} needs {tuple(slot.shape[:-1])}"
        )
    valid = (torch.arange(slot.shape[-1], device=slot.device) < count[..., None]) & (slot >= 0)
    joined = valid[..., 1:] & valid[..., :-1] & (slot[..., 1:] == slot[..., :-1] + 1)
    if page_size is not None:
        joined &= slot[..., 1:] % page_size != 0
    return (valid.sum(-1) - joined.sum(-1)).int()
