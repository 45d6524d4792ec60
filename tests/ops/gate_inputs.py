"""Inputs and an oracle for the laws of gate."""

import math

import torch
from harness import same_bits

SCORES = ("sigmoid", "softmax", "sqrt_softplus")
EPSILONS = ("add", "clamp", "none")


def logits_of(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def normal(tokens, experts, seed=0):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed))


def same(a, b):
    return all(same_bits(x, y) for x, y in ((a.index, b.index), (a.count, b.count), (a.weight, b.weight)))


def exact(row, score):
    """The scores of one row by Python's floats, written so that small ones keep their digits."""
    if score == "softmax":
        e = [math.exp(x - max(row)) for x in row]
        return [x / math.fsum(e) for x in e]
    if score == "sigmoid":
        return [math.exp(x) / (1 + math.exp(x)) if x < 0 else 1 / (1 + math.exp(-x)) for x in row]
    return [math.sqrt(max(x, 0) + math.log1p(math.exp(-abs(x)))) for x in row]
