"""Where grouped_gemm is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.fp8 import quantise_blocks, quantise_rows
from tilesieve.types import Case, Groups

ROWS = "groups"


def _groups(counts: tuple[int, ...], align: int, tail: int) -> Groups:
    """Groups of so many rows, each padded to `align`, and `tail` rows past the end."""
    token, offsets = [], [0]
    for count in counts:
        token += [*range(count)] + [-1] * (-count % align)
        offsets.append(len(token))
    token += [0] * tail  # past the end: whatever it says, the row is not read
    token_N = torch.tensor(token, dtype=torch.int32)
    choice_N = torch.where(token_N < 0, -1, 0).int()
    tiles = torch.empty(0, 3, dtype=torch.int32)
    return Groups(token_N, choice_N, torch.tensor(offsets, dtype=torch.int32), tiles, max(counts, default=0))


def _inputs(generator: Generator, *, counts: tuple[int, ...], depth: int, width: int, align: int = 1, tail: int = 0,
            of: torch.dtype = torch.float32, listed: bool = False, quantiser: str | None = None,
            spoil: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    groups = _groups(counts, align, tail)
    rows = len(groups.token)
    x = torch.randn(rows, depth, generator=generator).to(of)
    weight = torch.randn(len(counts), width, depth, generator=generator).to(of)
    weight[torch.tensor(counts, dtype=torch.int64) == 0] = torch.nan  # of no rows: not read
    unread = (groups.token < 0) | (torch.arange(rows) >= groups.offsets[-1])
    inputs: dict[str, Any] = {"x": x, "groups": groups, "weight": weight, **more}
    if quantiser is not None:
        inputs["x"], inputs["x_scale"] = quantise_rows(quantiser, x)
        inputs["weight"], inputs["weight_scale"] = quantise_blocks(quantiser, weight.nan_to_num(0.0))
        inputs["x_scale"][unread] = torch.nan
    else:
        x[unread] = torch.nan
    if listed:
        inputs |= {name: list(value) for name, value in inputs.items() if name.startswith("weight")}
    if spoil:
        groups.offsets[1], groups.offsets[-1] = -5, rows + 9
    return inputs


def _case(name: str, error: float, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


# fp32 sums of K terms in another order; largest seen 2.5e-7 of the largest result.
FP32 = 1e-6
# A sum near the middle of two values of the result's dtype: half an ulp of it, and fp32's.
BF16, FP16 = 2**-8, 2**-11
POW2, LINEAR = "e4m3_amax_pow2", "e4m3_amax_linear"
CASES = (
    _case("small", FP32, counts=(3, 0, 2, 1), depth=8, width=24),
    _case("bf16_padded", BF16, counts=(9, 33, 0, 1), depth=48, width=40, of=torch.bfloat16, align=8, tail=3),
    _case("listed_odd", FP32, counts=(1, 2, 5, 17), depth=37, width=19, listed=True),
    _case("fp16", FP16, counts=(4, 12), depth=64, width=16, of=torch.float16),
    _case("bf16_to_fp32", FP32, counts=(4, 12), depth=64, width=16, of=torch.bfloat16, dtype=torch.float32),
    _case("one_takes_all", FP32, counts=(0, 150, 0), depth=33, width=32),
    _case("more_than_a_pass", FP32, counts=(700, 1, 640), depth=4, width=3),
    _case("many_experts", FP32, counts=(1, 0, 2, 0) * 16, depth=20, width=16),
    _case("fp8", BF16, counts=(5, 0, 18), depth=256, width=160, quantiser=POW2, align=4, tail=2),
    _case("fp8_ragged", FP32, counts=(5, 9), depth=200, width=130, quantiser=LINEAR, listed=True, dtype=torch.float32),
    _case("spoilt_offsets", FP32, counts=(3, 4, 2), depth=8, width=16, spoil=True, invalid=True),
    _case("empty", FP32, counts=(0, 0), depth=8, width=16),
    _case("no_experts", FP32, counts=(), depth=8, width=16, tail=3),
    _case("no_depth", FP32, counts=(2, 1), depth=0, width=16),
    _case("no_width", FP32, counts=(2, 1), depth=8, width=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`."""
    groups, one = inputs["groups"], slice(row, row + 1)
    rows: dict[str, Any] = {name: inputs[name][one] for name in ("x", "x_scale") if name in inputs}
    offsets = (groups.offsets.clamp(0, len(groups.token)).cummax(0).values > row).int()
    only = Groups(groups.token[one], groups.choice[one], offsets, groups.tiles, 1)
    return {**inputs, **rows, "groups": only}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors; zero rows are nothing
    that must be written."""
    groups: Groups = inputs["groups"]
    ends = groups.offsets.clamp(0, len(groups.token)).cummax(0).values.tolist()
    live = [[n for n in range(a, b) if groups.token[n] >= 0] for a, b in zip(ends, ends[1:], strict=False)]
    moved = [groups.token, groups.offsets]
    for e, rows in enumerate(live):
        moved += [inputs[name][rows] for name in ("x", "x_scale") if name in inputs] + [outputs[0][rows]]
        if rows:
            moved += [inputs[name][e] for name in ("weight", "weight_scale") if name in inputs]
    return sum(t.numel() * t.element_size() for t in moved)
