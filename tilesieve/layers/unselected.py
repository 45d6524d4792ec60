"""The mass that a selection leaves out, as far as its scores tell."""

import torch
from torch import Tensor

from tilesieve.types import Partial, Selection

# Columns whose exponentials are summed at once; fixed, so that a row's bits do not depend on padding.
BLOCK = 512


def elsewhere(scores: Tensor, selection: Selection, partial: Partial) -> Partial:
    """What was not selected, as a part of no value: its mass by the scores, in proportion to the selected one's.

    scores fp32 [R,H,L]. The proportion, not the mass itself: scores of centred keys are shifted by an
    unknown constant per row.
    """
    heads = scores.shape[1]
    index = selection.index if selection.index.dim() == 3 else selection.index[:, None]
    index = index.repeat_interleave(heads // index.shape[1], 1).long()
    padded = torch.nn.functional.pad(scores, (0, 1 + -(scores.shape[2] + 1) % BLOCK), value=-torch.inf)
    index = torch.where(index < 0, scores.shape[2], index)
    inside = torch.full_like(padded, -torch.inf).scatter_(2, index, padded.gather(2, index))
    outside = padded.scatter(2, index, -torch.inf)
    lse = partial.lse + lse_of(outside) - lse_of(inside)
    # Nothing selected, or nothing else: no part.
    lse = torch.where(lse.isnan(), -torch.inf, lse)
    return Partial(torch.zeros_like(partial.out), lse)


def lse_of(scores: Tensor) -> Tensor:
    """log of the sum of exp over the last dimension, a multiple of BLOCK wide: block sums in order, so that
    padding changes no bit."""
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    blocks = torch.exp(scores - top).unflatten(-1, (-1, BLOCK)).sum(-1)
    total = torch.zeros_like(blocks[..., 0])
    for n in range(blocks.shape[-1]):
        total = total + blocks[..., n]
    return total.log() + top[..., 0]
