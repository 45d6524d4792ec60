"""Where score_append is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.score import SCALED, quantise
from tilesieve.types import Case, Projection, ScoreCache

ROWS = "k"
MUTATES = "cache"


def projection(generator: Generator, kind: str, heads: int, width: int, columns: int) -> Projection:
    """kind: "prefix", "pairs", "centred" (dimensions less a mean), "basis" or "pca" (with a mean)."""
    mean = torch.randn(heads, width, generator=generator) if kind in ("centred", "pca") else None
    if kind in ("basis", "pca"):
        square = torch.randn(heads, width, width, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(square).Q[..., :columns].float().contiguous()
        return Projection(kind, None, basis, mean, width)
    half = torch.arange(width // 2 - columns // 2, width // 2)
    dims = torch.cat([half, half + width // 2]) if kind == "pairs" else torch.arange(columns)
    return Projection(kind, dims, None, mean, width)


def _inputs(generator: Generator, *, rows: int, heads: int = 2, width: int = 8, columns: int = 4, pages: int = 8,
            page_size: int = 4, of: torch.dtype = torch.float32, format: str = "score_fp32", kind: str = "prefix",
            skip: bool = False, special: bool = False, slots: torch.dtype = torch.int64) -> dict[str, Any]:  # fmt: skip
    pool = torch.randn(pages, page_size, heads, columns, generator=generator)
    data, scale = quantise(format, pool)
    assert (scale is not None) == (format in SCALED)
    k: Tensor = torch.randn(rows, heads, width, generator=generator)
    if special:  # magnitudes from the least denormal to near the largest float, zeros, a NaN, an infinity
        k = k * torch.logspace(-37, 37, rows)[:, None, None]
        k[0], k[1], k[2] = 0.0, 1e-45, -0.0
        k[3, 0, 1], k[4, -1, 0] = torch.nan, -torch.inf
    slot = torch.randperm(pages * page_size, generator=generator)[:rows]
    if skip:
        slot[::3] = -1
        slot[1::5] = pages * page_size + 3
        k[::3] = torch.nan  # a skipped row is not read
    return {"k": k.to(of), "projection": projection(generator, kind, heads, width, columns),
            "cache": ScoreCache(data, scale, format), "slot": slot.to(slots)}  # fmt: skip


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    # No error is allowed anywhere: sums are in fp64 and rounded to fp32, so two orders of adding
    # agree in bits but for about one number in 10^8; the cases are fixed and hold none of those.
    return Case(name, lambda generator: _inputs(generator, **shape), 0.0, invalid)


CASES = (
    _case("small", rows=5),
    _case("int8_pca", rows=20, heads=3, width=16, format="score_int8", kind="pca"),
    _case("bf16_pairs", rows=20, width=16, of=torch.bfloat16, format="score_bf16", kind="pairs", slots=torch.int32),
    _case("fp8_pairs", rows=13, width=16, columns=8, of=torch.float16, format="score_fp8", kind="pairs"),
    _case("fp8_basis", rows=9, heads=1, width=24, columns=5, of=torch.bfloat16, format="score_fp8", kind="basis"),
    _case("fp16", rows=7, columns=8, format="score_fp16"),
    _case("centred_dims", rows=9, format="score_int8", kind="centred"),
    _case("full_width_pca", rows=11, width=8, columns=8, kind="pca"),
    _case("more_than_a_tile", rows=150, width=64, columns=16, pages=12, page_size=16, format="score_int8", kind="pca"),
    _case("special_int8", invalid=True, rows=20, columns=8, format="score_int8", special=True),
    _case("special_fp8", invalid=True, rows=20, columns=8, format="score_fp8", special=True),
    _case("special_fp32", invalid=True, rows=20, columns=8, format="score_fp32", special=True),
    _case("skips", invalid=True, rows=17, format="score_int8", skip=True),
    _case("empty", rows=0, format="score_fp8", kind="pca"),
    _case("no_heads", rows=3, heads=0, format="score_int8", kind="basis"),
    _case("no_pages", rows=0, pages=0),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the cache is the same."""
    return {n: v[row : row + 1] if n in ("k", "slot") else v for n, v in inputs.items()}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    cache: ScoreCache = inputs["cache"]
    by: Projection = inputs["projection"]
    live = (inputs["slot"] >= 0) & (inputs["slot"] < cache.data.shape[0] * cache.data.shape[1])
    kept = slice(None) if by.dims is None else by.dims
    read = [inputs["slot"], inputs["k"][live][..., kept], by.dims, by.basis]
    read.append(None if by.mean is None else by.mean[..., kept])
    written = [t[0, 0].numel() * t.element_size() for t in (cache.data, cache.scale) if t is not None and len(t)]
    return int(live.sum()) * sum(written) + sum(t.numel() * t.element_size() for t in read if t is not None)
