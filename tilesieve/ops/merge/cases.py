"""Where merge is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Partial

ROWS = "parts"


def _inputs(generator: Generator, *, parts: int, rows: int, heads: int = 3, width: int = 8,
            of: torch.dtype = torch.float32, dead: bool = False, empty: bool = False, sink: bool = False,
            far: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    made = []
    lengths = torch.full((parts, rows), 5, dtype=torch.int32)
    for n in range(parts):
        out = torch.randn(rows, heads, width, generator=generator).to(of)
        lse = torch.randn(rows, heads, generator=generator) * (400.0 if far else 2.0)
        if dead and rows:  # a part that says it is empty may hold anything
            lengths[n, n::parts] = 0
            out[n::parts], lse[n::parts] = torch.nan, torch.nan
            lse[-1], out[-1] = -torch.inf, torch.nan
        if empty:
            lse.fill_(-torch.inf)
        made.append(Partial(out, lse))
    extra = {"sink": torch.randn(heads, generator=generator)} if sink else {}
    given = {"lengths": lengths} if dead or not rows else {}
    return {"parts": made, **given, **extra, **more}


def _case(name: str, error: float, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), error)


# 1e-6: a few fp32 roundings of terms no larger than the result's scale; largest seen 1.6e-7.
# bf16 8e-3: one bf16 rounding can fall the other way.
CASES = (
    _case("two", 1e-6, parts=2, rows=5),
    _case("one", 1e-6, parts=1, rows=4),
    _case("five_far_apart", 1e-6, parts=5, rows=7, far=True),
    _case("dead_parts", 1e-6, parts=3, rows=7, dead=True, sink=True),
    _case("bf16", 8e-3, parts=2, rows=6, width=16, of=torch.bfloat16, dtype=torch.bfloat16),
    _case("all_empty", 1e-6, parts=2, rows=3, empty=True, sink=True),
    _case("no_rows", 1e-6, parts=2, rows=0),
    _case("no_heads", 1e-6, parts=2, rows=2, heads=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`."""
    part = slice(row, row + 1)
    parts = [Partial(p.out[part], p.lse[part]) for p in inputs["parts"]]
    return {**inputs, "parts": parts, **({"lengths": inputs["lengths"][:, part]} if "lengths" in inputs else {})}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    read = [inputs[name] for name in ("lengths", "sink") if name in inputs]
    for n, part in enumerate(inputs["parts"]):
        live = inputs["lengths"][n] > 0 if "lengths" in inputs else slice(None)
        read += [part.out[live], part.lse[live]]
    return sum(t.numel() * t.element_size() for t in [*read, *outputs])
