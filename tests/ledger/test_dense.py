"""Costs of the dense parts: counted by hand, by torch's counter, and on tensors."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from tilesieve.ledger import dense


def test_linear_by_hand():
    cost = dense.linear(1, 4096, 14336)
    assert cost.flops == 2 * 4096 * 14336 == 117_440_512
    assert cost.bytes_min == 2 * (4096 * 14336 + 4096 + 14336)
    biased = dense.linear(3, 5, 7, bias=True, itemsize=4, weight_itemsize=1)
    assert (biased.flops, biased.bytes_min) == (2 * 3 * 5 * 7 + 3 * 7, 5 * 7 + 7 + 4 * 3 * (5 + 7))
    # Scores [1,32] x [32,32768]: 2 MiB of keys in bf16, with the query and scores in bf16 on top.
    scores = dense.linear(1, 32, 32768)
    assert scores.flops == 2_097_152
    assert scores.bytes_min - 2 * 32 - 2 * 32768 == 2 * 2**20


def test_linear_is_what_torch_counts_and_touches():
    x, weight = torch.randn(6, 10, dtype=torch.bfloat16), torch.randn(10, 14, dtype=torch.bfloat16)
    with FlopCounterMode(display=False) as counter:
        y = x @ weight
    cost = dense.linear(6, 10, 14)
    assert cost.flops == counter.get_total_flops()
    assert cost.bytes_min == sum(t.numel() * t.element_size() for t in (x, weight, y))


def test_the_others_by_hand():
    assert dense.norm(2, 576).flops == 4 * 2 * 576
    assert dense.norm(2, 576).bytes_min == 2 * (2 * 2 * 576 + 576)
    assert dense.norm(9, 64, weights=64).bytes_min == 2 * (2 * 9 * 64 + 64)
    assert dense.norm(2, 8, weight_itemsize=4).bytes_min == 2 * 2 * 2 * 8 + 4 * 8
    assert dense.rope(1, 9, 64).flops == 3 * 9 * 64
    assert dense.rope(1, 9, 64).bytes_min == 2 * 2 * 9 * 64 + 4 * (32 + 32)
    assert dense.swiglu(1, 1536).bytes_min == 3 * 2 * 1536
    assert dense.residual(4, 10).flops == 40
    assert dense.embedding(3, 576).flops == 0
    assert dense.embedding(3, 576).bytes_min == 3 * (576 * 4 + 8)
    assert dense.head(1, 576, 49152).flops == 56_623_104
    assert dense.head(1, 576, 49152).bytes_min == 2 * (576 * 49152 + 576 + 49152)
