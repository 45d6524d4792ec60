"""Where group_rows is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Selection

ROWS = "selection"


def _inputs(generator: Generator, *, tokens: int, experts: int, picks: int, logical: int | None = None,
            spread: str = "even", spoil: bool = False, short: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    """spread: "even", "one" (all picks on one expert) or "few" (most experts empty); logical: that many
    experts elsewhere and here; short: counts of every size; spoil: break each rule somewhere."""
    known = experts if logical is None else logical
    reach = {"even": known, "one": min(known, 1), "few": min(known, 3)}[spread]
    index = torch.randint(0, max(reach, 1), (tokens, picks), generator=generator, dtype=torch.int32)
    count = torch.full((tokens,), picks, dtype=torch.int32)
    inputs: dict[str, Any] = {"experts": experts, **more}
    if logical is not None:
        place = torch.randperm(logical, generator=generator).int()
        inputs["expert_map"] = torch.where(place < experts, place, -1)
    if short:
        count = torch.randint(0, picks + 1, (tokens,), generator=generator, dtype=torch.int32)
        index[torch.arange(picks) >= count[:, None]] = -1
    if spoil:
        index[:, ::3], index[1::2, 1::3] = -1, known + 7
        count[::4], count[1::4] = -3, picks + 5
        index[2::5] = torch.iinfo(torch.int32).min
    return {"selection": Selection(index, count, None, "expert"), **inputs}


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


CASES = (
    _case("small", tokens=5, experts=4, picks=2, tile=16),
    _case("padded", tokens=33, experts=8, picks=4, tile=32, align=32),
    _case("elsewhere", tokens=37, experts=3, picks=4, tile=16, logical=9, short=True),
    _case("spoilt", invalid=True, tokens=21, experts=5, picks=6, tile=16, spoil=True),
    _case("spoilt_map", invalid=True, tokens=21, experts=5, picks=6, tile=16, logical=8, spoil=True, align=8),
    _case("one_expert_takes_all", tokens=70, experts=6, picks=2, spread="one", align=128, tile=128),
    _case("count_plus_one", tokens=64, experts=5, picks=2, spread="few", align=16, tile=16, reserve="count_plus_one"),
    _case("masked", tokens=19, experts=5, picks=3, capacity=48, align=16, tile=16),
    _case("more_experts_than_picks", tokens=2, experts=256, picks=3, align=16),
    _case("empty", tokens=0, experts=4, picks=2),
    _case("empty_reserved", tokens=0, experts=3, picks=2, align=16, reserve="count_plus_one"),
    _case("no_picks", tokens=3, experts=4, picks=0, align=8),
    _case("no_experts_here", tokens=3, experts=0, picks=2, logical=4),
    _case("empty_map", invalid=True, tokens=3, experts=2, picks=2, logical=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but token `row`."""
    selection: Selection = inputs["selection"]
    one = slice(row, row + 1)
    return {**inputs, "selection": Selection(selection.index[one], selection.count[one], None, "expert")}


def part(outputs: tuple[Tensor, ...], row: int) -> tuple[Tensor, ...]:
    """What of the result is token `row`'s: the choices that have a row, in order of their experts, and these.
    Where its rows lie is the neighbours' matter."""
    token, choice, offsets, _, row_TK = outputs
    mine = (token == row).nonzero()[:, 0]
    expert = torch.searchsorted(offsets[1:].contiguous(), mine.int(), right=True)
    return choice[mine], expert, row_TK[row] >= 0


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    selection: Selection = inputs["selection"]
    read, looked_up = len(selection.count), set()
    for index, count in zip(selection.index.tolist(), selection.count.tolist(), strict=True):
        read += len(index[: max(count, 0)])
        looked_up |= set(index[: max(count, 0)])
    if "expert_map" in inputs:
        read += len(looked_up & set(range(len(inputs["expert_map"]))))
    return 4 * (read + sum(t.numel() for t in outputs))
