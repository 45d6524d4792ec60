"""Where kv_append is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, KVCache

ROWS = "k"
MUTATES = "cache"


def _inputs(generator: Generator, *, rows: int, heads: int = 2, width: int = 8, value_width: int | None = None,
            pages: int = 8, page_size: int = 4, of: torch.dtype = torch.float32,
            cache_dtype: torch.dtype = torch.float32, layout: str = "token", skip: bool = False,
            norm: bool = False, pairs: int = 0, rope: str = "none") -> dict[str, Any]:  # fmt: skip
    name = {torch.bfloat16: "kv_bf16", torch.float16: "kv_fp16", torch.float32: "kv_fp32"}[cache_dtype]
    value_width = width if value_width is None else value_width

    def pool(columns: int) -> Tensor:
        shape = (pages, page_size, heads) if layout == "token" else (pages, heads, page_size)
        return torch.randn(*shape, columns, generator=generator).to(cache_dtype)

    slot = torch.randperm(pages * page_size, generator=generator)[:rows]
    if skip:
        slot[::3] = -1
        slot[1::5] = pages * page_size + 3
    inputs: dict[str, Any] = {
        "k": torch.randn(rows, heads, width, generator=generator).to(of),
        "v": torch.randn(rows, heads, value_width, generator=generator).to(of),
        "cache": KVCache(pool(width), pool(value_width), f"{name}.{layout}"),
        "slot": slot,
    }
    if norm:
        inputs["norm"] = torch.rand(width, generator=generator) + 0.5
    if pairs:
        angle = torch.rand(rows, pairs, generator=generator) * 6
        inputs |= {"cos": angle.cos(), "sin": angle.sin(), "rope": rope}
    return inputs


def _case(name: str, error: float = 0.0, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


CASES = (
    _case("small", rows=5),
    _case("bf16", rows=20, of=torch.bfloat16, cache_dtype=torch.bfloat16, value_width=6),
    _case("head_major", rows=9, heads=3, cache_dtype=torch.bfloat16, layout="head"),
    _case("skips", invalid=True, rows=17, skip=True),
    # 4e-7: a few fp32 roundings (the reference rounds once); largest seen 1.7e-7.
    _case("norm_half", 4e-7, rows=11, width=16, norm=True, pairs=8, rope="half"),
    _case("interleaved_partial", 4e-7, rows=11, width=16, pairs=4, rope="interleaved"),
    # 8e-3: one bf16 rounding (2^-8) can fall the other way after an fp32 difference.
    _case("norm_bf16", 8e-3, rows=11, width=16, norm=True, cache_dtype=torch.bfloat16, of=torch.bfloat16),
    _case("empty", rows=0),
    _case("no_heads", rows=3, heads=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the cache is the same."""
    per_row = ("k", "v", "slot", "cos", "sin")
    return {n: v[row : row + 1] if n in per_row else v for n, v in inputs.items()}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    cache: KVCache = inputs["cache"]
    slots = cache.key.numel() // max(1, cache.key.shape[-1] * inputs["k"].shape[1])
    live = (inputs["slot"] >= 0) & (inputs["slot"] < slots)
    rows = [inputs[n][live] for n in ("k", "v", "cos", "sin") if n in inputs]
    written = sum(inputs[n][live].numel() for n in ("k", "v")) * cache.key.element_size()
    whole = [inputs["slot"], *([inputs["norm"]] if "norm" in inputs else [])]
    return written + sum(t.numel() * t.element_size() for t in [*rows, *whole])
