"""gate_bias_update, all at once: the same integers, the same rounding. L layers, E experts."""

from torch import Tensor


def gate_bias_update(bias_LE: Tensor, loads_LE: Tensor, rate: float, *, out: tuple[Tensor, ...]) -> None:
    loads_LE = loads_LE.long()
    short_LE = loads_LE.sum(-1, keepdim=True) - loads_LE.shape[1] * loads_LE
    out[0].copy_(bias_LE.double() + rate * short_LE.sign().double())
