"""Scores as int32 keys: a greater key is a better pick, equal keys are equal scores.

R rows, G sets per row, H heads of a set, L columns. A key at or below NEVER is no pick; FORCED is
above +inf. Comparing integers costs less than comparing floats, which must look for NaN.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from tilesieve.ops.topk.reference import COLUMNS, LARGEST

INF = 0x7F800000  # the key of +inf
NEVER = -INF  # the key of -inf
LOWEST = -(1 << 31)
FORCED = (1 << 31) - 1

# Bytes of a buffer that scores pass through: near the caches, yet long enough that calls cost little.
# As in cost.py, which states what workspace that makes.
BUFFER = 4 << 20


def outside(x: Tensor, start_R: Tensor, end_R: Tensor, fill: float) -> None:
    """Write `fill` in x [R,...,L] outside each row's range [start, end). Looks only at columns where
    rows differ, so that ranges near each other cost nearly nothing."""
    columns = torch.arange(x.shape[-1], device=x.device)
    late, early = int(start_R.max()), min(int(end_R.min()), x.shape[-1])
    by_row = (-1, *[1] * (x.dim() - 1))
    if late > 0:
        x[..., :late].masked_fill_(columns[:late] < start_R.view(by_row), fill)
    if early < x.shape[-1]:
        x[..., early:].masked_fill_(columns[early:] >= end_R.view(by_row), fill)


def _parts(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cut x [R,G,...] into parts of at most BUFFER bytes, or one set where that is more."""
    rows, sets = x.shape[:2]
    at_once = max(1, BUFFER // max(1, 4 * x[0, 0].numel()))
    step_G = min(sets, at_once)
    step_R = min(rows, max(1, at_once // step_G))
    for r in range(0, rows, step_R):
        for g in range(0, sets, step_G):
            yield slice(r, r + step_R), slice(g, g + step_G)


def _order(x_RGL: Tensor, key_RGL: Tensor) -> None:
    """fp32 scores to keys: sign and magnitude become two's complement, so -0 equals +0 and denormals
    keep their order; NaN becomes LOWEST."""
    bits_RGL, buffer = x_RGL.view(torch.int32), key_RGL.new_empty(0)
    for part in _parts(key_RGL):
        bits, key = bits_RGL[part], key_RGL[part]
        # The first part is the largest.
        buffer = buffer if buffer.numel() else torch.empty_like(bits, memory_format=torch.contiguous_format)
        sign = torch.bitwise_right_shift(bits, 31, out=buffer.view(-1)[: bits.numel()].view(bits.shape))
        torch.bitwise_and(sign, FORCED, out=key).bitwise_xor_(bits).sub_(sign)
        # A NaN with its sign set is below NEVER already.
        if int(key.amax()) > INF:
            key.masked_fill_(key > INF, LOWEST)


def _masses(x_RGHL: Tensor, start_R: Tensor, end_R: Tensor, key_RGL: Tensor) -> None:
    """Keys of the mass over each row's range, summed over two heads or more in ascending order. A mass
    is not negative, so its bits are its key."""
    width = x_RGHL.shape[-1]
    buffers: list[Tensor] = []
    for part in _parts(x_RGHL):
        x, start, end, total = x_RGHL[part], start_R[part[0]], end_R[part[0]], key_RGL[part].view(torch.float32)
        shape = (*x.shape[:3], max(width, COLUMNS))
        if not buffers:  # the first part is the largest
            buffers = [x.new_empty(shape), x.new_empty(shape)]
        y, p = (b.view(-1)[: math.prod(shape)].view(shape) for b in buffers)
        if width < COLUMNS or not x.is_contiguous() or int(start.max()) > 0 or int(end.min()) < width:
            y[..., :width] = x
            y[..., width:] = -torch.inf
            outside(y[..., :width], start, end, -torch.inf)
        else:
            y = x
        torch.softmax(y, -1, out=p)
        # NaN or +inf anywhere in a head's range, or nothing above -inf, makes all of its row NaN.
        bad_RGH = p[..., 0].isnan()
        if bool(bad_RGH.any()):
            z = y[bad_RGH]
            z = torch.where(z > -torch.inf, z, -torch.inf).clamp_(max=LARGEST)
            p[bad_RGH] = torch.softmax(z, -1).nan_to_num_(0.0)
        torch.add(p[..., 0, :width], p[..., 1, :width], out=total)
        for h in range(2, p.shape[2]):
            total += p[..., h, :width]
        # A mass of 0 may be one too small for fp32, which may be picked, or none at all, which may not.
        outside(total, start, end, 1.0)
        if float(total.amin()) == 0.0:
            key_RGL[part].masked_fill_(~_pickable(y[..., :width]), LOWEST)


def _pickable(x_RGHL: Tensor) -> Tensor:
    """Where any head of the set has a score above -inf: bool [R,G,L]."""
    any_RGL = x_RGHL[..., 0, :] > -torch.inf
    for h in range(1, x_RGHL.shape[2]):
        any_RGL |= x_RGHL[..., h, :] > -torch.inf
    return any_RGL


def write_keys(x_RGHL: Tensor, start_R: Tensor, end_R: Tensor, reduce: str, ranked: bool, key_RGL: Tensor) -> None:
    """One key per set and column, LOWEST outside the range. Where nothing need be `ranked` because
    all fit, a mass need not be known."""
    heads = x_RGHL.shape[2]
    if heads > 1 and reduce == "mass":
        if ranked:
            _masses(x_RGHL, start_R, end_R, key_RGL)
        else:
            key_RGL.fill_(LOWEST).masked_fill_(_pickable(x_RGHL), 0)
    else:
        value_RGL = x_RGHL[..., 0, :]
        for h in range(1, heads):
            head_RGL = x_RGHL[..., h, :]
            value_RGL = value_RGL + head_RGL if reduce == "sum" else torch.fmax(value_RGL, head_RGL)
        _order(value_RGL, key_RGL)
    outside(key_RGL, start_R, end_R, LOWEST)
