"""Where experts is tried."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.fp8 import quantise_blocks, quantise_rows
from tilesieve.types import Case, Groups

ROWS = "groups"


def _route(generator: Generator, tokens: int, experts: int, picks: int, align: int, tail: int, lost: float,
           reach: int) -> Groups:  # fmt: skip
    """Picks among the first `reach` experts, some lost, groups padded to `align`, `tail` rows past the end."""
    expert = torch.randint(0, max(reach, 1), (tokens, picks), generator=generator)
    expert[torch.rand(tokens, picks, generator=generator) < lost] = -1
    rows, offsets = [], [0]
    for e in range(experts):
        mine = (expert == e).nonzero().tolist()
        rows += mine + [[-1, -1]] * (-len(mine) % align)
        offsets.append(len(rows))
    rows += [[0, 0]] * tail  # past the end: whatever they name, it is not read
    token, choice = torch.tensor(rows, dtype=torch.int32).view(-1, 2).unbind(1)
    ends = torch.tensor(offsets, dtype=torch.int32)
    return Groups(token.clone(), choice.clone(), ends, torch.empty(0, 3, dtype=torch.int32), tokens * picks)


def _inputs(generator: Generator, sizes: tuple[int, int, int, int, int], *, align: int = 1, tail: int = 0,
            lost: float = 0.0, reach: int | None = None, of: torch.dtype = torch.float32,
            listed: bool = False, quantiser: str | None = None, weight_at: str = "combine", spoil: bool = False,
            **more: Any) -> dict[str, Any]:  # fmt: skip
    tokens, experts, picks, width, inner = sizes
    groups = _route(generator, tokens, experts, picks, align, tail, lost, experts if reach is None else reach)
    x = torch.randn(tokens, width, generator=generator).to(of)
    w13 = (torch.randn(experts, 2 * inner, width, generator=generator) * max(width, 1) ** -0.5).to(of)
    w2 = (torch.randn(experts, width, inner, generator=generator) * max(inner, 1) ** -0.5).to(of)
    inputs: dict[str, Any] = {"x": x, "groups": groups, "w13": w13, "w2": w2, "weight_at": weight_at, **more}
    if weight_at != "combine":
        inputs["weight"] = torch.rand(tokens, picks, generator=generator)
    if quantiser is not None:
        inputs["quantiser"] = quantiser
        inputs["x"], inputs["x_scale"] = quantise_rows(quantiser, x)
        for name, w in (("w13", w13), ("w2", w2)):
            inputs[name], inputs[f"{name}_scale"] = quantise_blocks(quantiser, w)
    else:
        w13[groups.offsets.diff() == 0] = w2[groups.offsets.diff() == 0] = torch.nan  # of no rows: not read
    if listed:
        inputs |= {name: list(value) for name, value in inputs.items() if name.startswith(("w13", "w2"))}
    if spoil:
        groups.token[::3], groups.token[1::5] = tokens + 5, -7
        groups.choice[2::4] = picks
    return inputs


def _case(name: str, error: float, *sizes: int, invalid: bool = False, **more: Any) -> Case:
    """sizes: tokens, experts, picks, width, inner."""
    tokens, experts, picks, width, inner = sizes
    return Case(name, lambda g: _inputs(g, (tokens, experts, picks, width, inner), **more), error, invalid)


# fp32 sums in another order, twice; largest seen 3.3e-7 of the largest result.
FP32 = 1e-6
# One value between the products, or of the result, on the other side of a rounding; largest seen 2.3e-5.
BF16, FP16 = 2**-7, 2**-10
HALF, WIDE = torch.bfloat16, torch.float32
PAD: Mapping[str, Any] = MappingProxyType({"align": 8, "tail": 5, "lost": 0.2})
POW2, LINEAR = "e4m3_amax_pow2", "e4m3_amax_linear"
CASES = (
    _case("small", FP32, 5, 4, 2, 24, 8),
    _case("bf16_padded_down", BF16, 23, 6, 3, 40, 24, of=HALF, weight_at="down", **PAD),
    _case("before_down_clamped", FP32, 9, 4, 2, 37, 19, limit=0.75, listed=True, weight_at="before_down"),
    _case("fp16", FP16, 7, 3, 2, 32, 48, of=torch.float16),
    _case("bf16_to_fp32", BF16, 7, 3, 2, 32, 48, of=HALF, dtype=WIDE),
    _case("one_takes_all", FP32, 70, 5, 2, 16, 16, reach=1),
    _case("more_than_a_pass", FP32, 353, 3, 3, 5, 3),
    _case("fp8", BF16, 9, 3, 2, 256, 192, quantiser=POW2, align=4),
    _case("fp8_linear", BF16, 9, 3, 2, 200, 72, quantiser=LINEAR, limit=1, weight_at="before_down", dtype=WIDE),
    _case("fp8_listed", BF16, 5, 4, 2, 128, 136, quantiser=POW2, listed=True, weight_at="down", **PAD),
    _case("spoilt", FP32, 9, 3, 2, 16, 8, invalid=True, spoil=True, weight_at="down"),
    _case("one_token", FP32, 1, 64, 8, 32, 16),
    _case("empty", FP32, 0, 4, 2, 16, 8),
    _case("empty_but_padded", FP32, 0, 4, 2, 16, 8, tail=3),
    _case("all_lost", FP32, 4, 4, 2, 16, 8, lost=2.0, align=8, tail=2),
    _case("no_experts", FP32, 4, 0, 2, 16, 8, lost=2.0, tail=2),
    _case("no_inner", FP32, 3, 2, 2, 16, 0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; x and the weights are the same."""
    groups: Groups = inputs["groups"]
    one = slice(row, row + 1)
    offsets = (groups.offsets > row).int()
    only = replace(groups, token=groups.token[one], choice=groups.choice[one], offsets=offsets, bound=1)
    return {**inputs, "groups": only}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors; zero rows are nothing
    that must be written."""
    groups: Groups = inputs["groups"]
    weight, ends = inputs.get("weight"), groups.offsets.tolist()
    moved = [groups.token, groups.offsets] + ([] if weight is None else [groups.choice])
    seen: set[int] = set()
    for e in range(len(ends) - 1):
        rows = [n for n in range(ends[e], ends[e + 1]) if 0 <= groups.token[n] < len(inputs["x"])]
        if weight is not None:
            rows = [n for n in rows if 0 <= groups.choice[n] < weight.shape[1]]
            moved += [weight[groups.token[n], groups.choice[n]] for n in rows]
        seen |= set(groups.token[rows].tolist())
        moved.append(outputs[0][rows])
        if rows:
            moved += [inputs[name][e] for name in ("w13", "w2", "w13_scale", "w2_scale") if name in inputs]
    moved += [inputs[name][sorted(seen)] for name in ("x", "x_scale") if name in inputs]
    return sum(t.numel() * t.element_size() for t in moved)
