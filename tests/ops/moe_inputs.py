"""What the tests of MoE's compute operators share."""

import torch

from tilesieve.types import Groups


def groups_of(counts, align=1, tail=0):
    """Groups of so many rows; token is 0, 1, .. over all rows, -1 on padding; `tail` rows past the end."""
    token, offsets, each = [], [0], 0
    for count in counts:
        token += [*range(each, each + count)] + [-1] * (-count % align)
        each += count
        offsets.append(len(token))
    token_N = torch.tensor(token + [0] * tail, dtype=torch.int32)
    choice_N = torch.where(token_N < 0, -1, 0).int()
    return Groups(token_N, choice_N, torch.tensor(offsets, dtype=torch.int32), torch.empty(0, 3, dtype=torch.int32),
                  max(counts, default=0))  # fmt: skip


def route(expert, experts):
    """Groups of picks expert[t][c] (-1: none), rows ordered by (expert, token, choice)."""
    expert = torch.as_tensor(expert)
    pairs = [(expert == e).nonzero() for e in range(experts)]
    token, choice = torch.cat(pairs).int().unbind(1)
    counts = torch.tensor([0] + [len(p) for p in pairs])
    row = torch.full(expert.shape, -1, dtype=torch.int32)
    row[token.long(), choice.long()] = torch.arange(len(token), dtype=torch.int32)
    return Groups(token.clone(), choice.clone(), counts.cumsum(0).int(), torch.empty(0, 3, dtype=torch.int32),
                  expert.numel(), row)  # fmt: skip


def whole(*shape, low=-4, high=5):
    """Small whole numbers: every sum of products is exact, so results are equal bit for bit."""
    return torch.randint(low, high, shape).float()
