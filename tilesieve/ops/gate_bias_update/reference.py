"""gate_bias_update, one expert at a time. L layers, E experts."""

import torch
from torch import Tensor


def gate_bias_update(bias_LE: Tensor, loads_LE: Tensor, rate: float) -> Tensor:
    layers, experts = bias_LE.shape
    new_LE = torch.empty_like(bias_LE, dtype=torch.float32)
    for layer in range(layers):
        loads = loads_LE[layer].tolist()
        for e in range(experts):
            # mean - load, times E: integers, so an expert at the mean is found to be there.
            short = sum(loads) - experts * loads[e]
            sign = (short > 0) - (short < 0)
            new_LE[layer, e] = float(bias_LE[layer, e]) + rate * sign
    return new_LE
