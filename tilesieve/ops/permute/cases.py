"""Where permute is tried."""

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Groups

ROWS = "groups"


def _route(generator: Generator, tokens: int, experts: int, picks: int, align: int = 1, tail: int = 0,
          lost: float = 0.0) -> Groups:  # fmt: skip
    """Groups of random experts, some picks dropped, groups padded to `align`, `tail` rows past the end."""
    expert = torch.randint(0, max(experts, 1), (tokens, picks), generator=generator)
    expert[torch.rand(tokens, picks, generator=generator) < lost] = -1
    rows, offsets = [], [0]
    for e in range(experts):
        mine = (expert == e).nonzero().tolist()
        rows += mine + [[-1, -1]] * (-len(mine) % align)
        offsets.append(len(rows))
    rows += [[-1, -1]] * tail
    token, choice = torch.tensor(rows, dtype=torch.int32).view(-1, 2).unbind(1)
    row = torch.full((tokens, picks), -1, dtype=torch.int32)
    for n, (t, c) in enumerate(rows):
        if t >= 0:
            row[t, c] = n
    tiles = torch.empty(0, 3, dtype=torch.int32)
    ends = torch.tensor(offsets, dtype=torch.int32)
    return Groups(token.clone(), choice.clone(), ends, tiles, tokens * picks, row, 0, align)


def _inputs(
    generator: Generator,
    *,
    tokens: int,
    experts: int,
    picks: int,
    width: int,
    align: int = 1,
    tail: int = 0,
    lost: float = 0.0,
    of: torch.dtype = torch.float32,
    spoil: bool = False,
    **more: Any,
) -> dict[str, Any]:
    groups = _route(generator, tokens, experts, picks, align, tail, lost)
    x = torch.randn(tokens, width, generator=generator).to(of)
    if tail:
        groups.token[len(groups.token) - tail :] = 0  # past the end: whatever it names is not copied
    if spoil:
        groups.token[::3] = tokens + 5
        groups.token[1::4] = -7
    return {"x": x, "groups": groups, **more}


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


CASES = (
    _case("small", tokens=5, experts=4, picks=2, width=8),
    _case("bf16_padded", tokens=33, experts=8, picks=4, width=24, of=torch.bfloat16, align=8, tail=5),
    _case("dropped", tokens=19, experts=4, picks=3, width=17, lost=0.5, tail=3),
    _case("spoilt", invalid=True, tokens=9, experts=3, picks=2, width=5, spoil=True, of=torch.float16),
    _case("kept", tokens=9, experts=4, picks=2, width=8, keep=7),
    _case("cut_from_the_end", tokens=9, experts=4, picks=2, width=8, align=4, drop=5),
    _case("fp64", tokens=3, experts=2, picks=2, width=3, of=torch.float64),
    _case("one_token", tokens=1, experts=256, picks=8, width=64),
    _case("empty", tokens=0, experts=4, picks=2, width=8),
    _case("empty_but_padded", tokens=0, experts=4, picks=2, width=8, tail=3),
    _case("all_dropped", tokens=4, experts=4, picks=2, width=8, lost=2.0, tail=8),
    _case("no_width", tokens=3, experts=2, picks=2, width=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`."""
    groups: Groups = inputs["groups"]
    one = slice(row, row + 1)
    offsets = (groups.offsets > row).int()
    only = replace(groups, token=groups.token[one], choice=groups.choice[one], offsets=offsets, row=None)
    kept = inputs.get("keep", len(groups.token) - inputs.get("drop", 0))
    return {"x": inputs["x"], "groups": only, "keep": max(0, kept - row)}


def part(outputs: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
    """Row `row` of the result, or none where it was not kept."""
    return (outputs[0][row : row + 1],)


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors; rows of padding
    are nothing that must be written."""
    x, token = inputs["x"], inputs["groups"].token[: len(outputs[0])]
    live = token[: int(inputs["groups"].offsets[-1])]
    live = live[(live >= 0) & (live < len(x))].long()
    moved = [x[live.unique()], x[live]]
    return sum(t.numel() * t.element_size() for t in moved) + 4 * (len(token) + 1)
