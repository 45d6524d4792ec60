"""Other libraries' ways to write a log-sum-exp, to and from ours: natural log, sink excluded, -inf for empty.

All take lse fp32 [..., H] and return fp32; they compute in fp64 and round once.
"""

import math

import torch
from torch import Tensor


def to_base2(lse: Tensor) -> Tensor:
    """log2(sum exp(score)) for ln(sum exp(score))."""
    return (lse.double() / math.log(2)).float()


def from_base2(lse: Tensor) -> Tensor:
    """ln for log2."""
    return (lse.double() * math.log(2)).float()


def with_sink(lse: Tensor, sink: Tensor) -> Tensor:
    """The lse that counts a sink, fp32 [H], as one more logit."""
    return torch.logaddexp(lse.double(), sink.double()).float()


def without_sink(lse: Tensor, sink: Tensor) -> Tensor:
    """The lse of the keys alone, from one that counts the sink; -inf where nothing is left.

    What the sink drowned cannot be had back: the result's error is that of lse times
    exp(lse - result), so where the keys weigh 1 % of the sum it is a hundred times that of lse.
    """
    rest = 1.0 - (sink.double() - lse.double()).exp()
    # Rounding can leave lse a little below the sink.
    left = lse.double() + rest.clamp(min=0.0).log()
    return torch.where(lse == -torch.inf, lse, left.float())


def empty_as_inf(lse: Tensor) -> Tensor:
    """+inf where we write -inf: the convention in which an empty row has weight exp(score - inf) = 0."""
    return lse.masked_fill(lse == -torch.inf, torch.inf)


def empty_as_minus_inf(lse: Tensor) -> Tensor:
    """-inf where others write +inf."""
    return lse.masked_fill(lse == torch.inf, -torch.inf)
