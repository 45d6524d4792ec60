"""Rows of a text that keep a set as decode steps would: whose set each row uses, and what it is by then."""

import math

import torch
from torch import Tensor

from tilesieve.policies import Every, Policy
from tilesieve.types import Selection

# The age of a selection that was never made: past any policy's patience.
NEVER = 1 << 30


def sources(q: Tensor, first: int, policy: Policy) -> list[int]:
    """For each row from `first` on: the row whose set it uses, itself where it selects."""
    count = q.shape[0]
    if policy.reselect == Every(1):
        return list(range(first, count))
    similarity = [math.nan] * count
    if count > 1:
        similarity[1:] = turns(q).tolist()
    found: list[int] = []
    age, due = NEVER, True
    for row in range(first, count):
        due = policy.reselect.due(age + 1, similarity[row], due)
        age = 0 if due else age + 1
        found.append(row if due else found[-1])
    return found


def turns(q: Tensor) -> Tensor:
    """fp64 [R-1]: the mean over heads of the cosine between each row's query and the one before it. q [R,H,D]."""
    return torch.cosine_similarity(q[1:].double(), q[:-1].double(), dim=-1).mean(-1)


def extended(selection: Selection, taken: Tensor, selected_at: Tensor, position: Tensor) -> Selection:
    """Row r takes set taken[r], made at selected_at[r], and the positions from there up to its own."""
    index = selection.index[taken]
    width = int((position - selected_at).max())
    column = torch.arange(1, width + 1, dtype=torch.int32, device=index.device)
    since = selected_at[:, None] + column
    since = torch.where(since <= position[:, None], since, -1)
    index = torch.cat([index, since.view(-1, *[1] * (index.dim() - 2), width).expand(*index.shape[:-1], width)], -1)
    # Entries of -1 within the count are skipped, so the whole width may count.
    return Selection(index.int(), torch.full_like(selection.count[taken], index.shape[-1]), None, "position")
