"""Where combine is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Groups

ROWS = "weight"  # the argument whose leading dimension counts the rows of the result


def _route(generator: Generator, tokens: int, experts: int, picks: int, pad: int = 0,
           drop: float = 0.0) -> Groups:  # fmt: skip
    """Random distinct experts per token, some picks dropped, `pad` rows of padding at the end."""
    ids = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :picks]
    keep = torch.rand(tokens, picks, generator=generator) >= drop
    token, choice = keep.nonzero(as_tuple=True)
    expert = ids[keep]
    order = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=experts)
    offsets = torch.zeros(experts + 1, dtype=torch.int32)
    offsets[1:] = counts.cumsum(0).int()
    filler = torch.full((pad,), -1, dtype=torch.int32)
    return Groups(
        token=torch.cat([token[order].int(), filler]),
        choice=torch.cat([choice[order].int(), filler]),
        offsets=offsets,
        tiles=torch.empty(0, 3, dtype=torch.int32),
        bound=tokens,
    )


def _inputs(generator: Generator, *, tokens: int, experts: int, picks: int, width: int, pad: int = 0,
            drop: float = 0.0, of: torch.dtype = torch.float32, shared: bool = False,
            **more: Any) -> dict[str, Any]:  # fmt: skip
    groups = _route(generator, tokens, experts, picks, pad, drop)
    y = torch.randn(len(groups.token), width, generator=generator).to(of)
    if pad:
        y[-pad:] = torch.nan  # padding must not be read
    weight = torch.rand(tokens, picks, generator=generator)
    extra = {"shared": torch.randn(tokens, width, generator=generator).to(of)} if shared else {}
    return {"y": y, "groups": groups, "weight": weight, **extra, **more}


def _case(name: str, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape))


CASES = (
    _case("small", tokens=5, experts=4, picks=2, width=8),
    _case("bf16_shared", tokens=33, experts=8, picks=4, width=24, of=torch.bfloat16, shared=True),
    _case("expert_order", tokens=33, experts=16, picks=8, width=17, order="expert", drop=0.3),
    _case("dropped_padded", tokens=19, experts=4, picks=3, width=8, pad=7, drop=0.5),
    _case("fp16", tokens=9, experts=8, picks=8, width=40, of=torch.float16),
    _case("bf16_to_fp32", tokens=9, experts=8, picks=8, width=40, of=torch.bfloat16, dtype=torch.float32),
    _case("one_token", tokens=1, experts=256, picks=8, width=64),
    _case("more_than_a_pass", tokens=1030, experts=4, picks=2, width=3),
    _case("empty_tokens", tokens=0, experts=4, picks=2, width=8),
    _case("all_dropped", tokens=4, experts=4, picks=2, width=8, drop=2.0, shared=True),
    _case("no_picks", tokens=3, experts=4, picks=0, width=8, shared=True),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but token `row`."""
    groups: Groups = inputs["groups"]
    mine = groups.token == row
    n = torch.arange(len(groups.token))
    offsets = torch.stack([(mine & (n < end)).sum() for end in groups.offsets.tolist()]).int()
    only = Groups(torch.zeros_like(groups.token[mine]), groups.choice[mine], offsets, groups.tiles, groups.bound)
    sliced = {k: v[row : row + 1] for k, v in inputs.items() if k in ("weight", "shared")}
    return {**inputs, "y": inputs["y"][mine], "groups": only, **sliced}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    groups: Groups = inputs["groups"]
    live = groups.token[: int(groups.offsets[-1])] >= 0
    read = [groups.token, groups.choice, groups.offsets, inputs["weight"], inputs["y"][: len(live)][live]]
    if inputs.get("shared") is not None:
        read.append(inputs["shared"])
    return sum(t.numel() * t.element_size() for t in [*read, *outputs])
