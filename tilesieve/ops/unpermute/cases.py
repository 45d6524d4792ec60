"""Where unpermute is tried."""

from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Groups

ROWS = "groups.row"


def _route(generator: Generator, tokens: int, experts: int, picks: int, align: int, lost: float) -> Groups:
    """Groups of random experts, some picks dropped, groups padded to `align`."""
    expert = torch.randint(0, max(experts, 1), (tokens, picks), generator=generator)
    expert[torch.rand(tokens, picks, generator=generator) < lost] = -1
    rows: list[list[int]] = []
    offsets = [0]
    row = torch.full((tokens, picks), -1, dtype=torch.int32)
    for e in range(experts):
        for t, c in (expert == e).nonzero().tolist():
            row[t, c] = len(rows)
            rows.append([t, c])
        rows += [[-1, -1]] * (-len(rows) % align)
        offsets.append(len(rows))
    token, choice = torch.tensor(rows, dtype=torch.int32).view(-1, 2).unbind(1)
    tiles = torch.empty(0, 3, dtype=torch.int32)
    ends = torch.tensor(offsets, dtype=torch.int32)
    return Groups(token.clone(), choice.clone(), ends, tiles, tokens * picks, row, 0, align)


def _inputs(generator: Generator, *, tokens: int, experts: int, picks: int, width: int, align: int = 1, tail: int = 0,
            lost: float = 0.0, kept: int | None = None, of: torch.dtype = torch.float32, weighted: bool = True,
            spoil: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    groups = _route(generator, tokens, experts, picks, align, lost)
    filler = torch.zeros(tail, dtype=torch.int32)
    groups = replace(groups, token=torch.cat([groups.token, filler]), choice=torch.cat([groups.choice, filler]))
    rows = torch.randn(len(groups.token), width, generator=generator).to(of)
    rows[(groups.token < 0) | (torch.arange(len(rows)) >= groups.offsets[-1])] = torch.nan
    assert groups.row is not None
    if spoil:  # past the last offset, far past it, twice
        groups.row[::3] = len(rows) - 1
        groups.row[1::4] = torch.iinfo(torch.int32).max
        groups.row[2::5] = 0
    inputs: dict[str, Any] = {"rows": rows[:kept], "groups": groups, **more}
    if weighted:
        of = torch.float64 if of == torch.float64 else torch.float32
        inputs["weight"] = torch.rand(tokens, picks, generator=generator, dtype=of)
    return inputs


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


CASES = (
    _case("small", tokens=5, experts=4, picks=2, width=8),
    _case("plain_bf16_padded", tokens=33, experts=8, picks=4, width=24, of=torch.bfloat16, align=8, weighted=False),
    _case("lost", tokens=19, experts=4, picks=3, width=17, lost=0.5, tail=3),
    _case("spoilt", invalid=True, tokens=19, experts=3, picks=2, width=5, tail=4, spoil=True, of=torch.float16),
    _case("kept", tokens=9, experts=4, picks=2, width=8, kept=7),
    _case("bf16_to_fp32", tokens=9, experts=8, picks=8, width=40, of=torch.bfloat16, dtype=torch.float32),
    _case("fp64", tokens=3, experts=2, picks=2, width=3, of=torch.float64),
    _case("one_token", tokens=1, experts=256, picks=8, width=64),
    _case("more_than_a_pass", tokens=515, experts=4, picks=2, width=3),
    _case("empty", tokens=0, experts=4, picks=2, width=8),
    _case("all_lost", tokens=4, experts=4, picks=2, width=8, lost=2.0),
    _case("none_kept", tokens=4, experts=4, picks=2, width=8, kept=0, weighted=False),
    _case("no_picks", tokens=3, experts=4, picks=0, width=8),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but token `row`; the rows are the same."""
    groups: Groups = inputs["groups"]
    assert groups.row is not None
    one = slice(row, row + 1)
    mine = {"weight": inputs["weight"][one]} if "weight" in inputs else {}
    return {**inputs, "groups": replace(groups, row=groups.row[one]), **mine}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the elements a call must read and write, counted on the tensors."""
    groups: Groups = inputs["groups"]
    assert groups.row is not None
    end = min(int(groups.offsets[-1]), len(inputs["rows"]))
    place = groups.row[(groups.row >= 0) & (groups.row < end)].long()
    read = [groups.row, inputs["rows"][place]] + ([inputs["weight"]] if "weight" in inputs else [])
    return 4 + sum(t.numel() * t.element_size() for t in [*read, *outputs])
