"""Where lowrank is tried."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.formats.score import SCALED, quantise
from tilesieve.types import Case, Pages, Projection, Rows, ScoreCache

ROWS = "q"


def _projection(generator: Generator, kind: str, heads: int, width: int, columns: int) -> Projection:
    """kind: "prefix", "pairs" or "pca" (a basis and a mean)."""
    if kind == "pca":
        square = torch.randn(heads, width, width, generator=generator, dtype=torch.float64)
        basis = torch.linalg.qr(square).Q[..., :columns].float().contiguous()
        return Projection(kind, None, basis, torch.randn(heads, width, generator=generator), width)
    half = torch.arange(width // 2 - columns // 2, width // 2)
    dims = torch.cat([half, half + width // 2]) if kind == "pairs" else torch.arange(columns)
    return Projection(kind, dims, None, None, width)


def _poison(tensor: Tensor, free: Tensor) -> None:
    """What no row may see: NaN where the dtype has one, an absurd number elsewhere."""
    page, offset = free.nonzero(as_tuple=True)
    absurd = torch.full((len(page), *tensor.shape[2:]), torch.nan if tensor.dtype.is_floating_point else 77.0)
    tensor[page, offset] = absurd.to(tensor.dtype)


def _inputs(generator: Generator, *, seq: list[int], position: list[int], length: list[int], heads: int = 3,
            kv_heads: int = 1, width: int = 8, columns: int = 4, page_size: int = 4, max_length: int | None = None,
            of: torch.dtype = torch.float32, format: str = "score_fp32", kind: str = "prefix", hole: bool = False,
            special: bool = False, head_major: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    """Sequences of `length` in permuted pages; rows (seq, position). `hole` takes a page from each."""
    widest = max([-(-n // page_size) for n in length], default=0) + 1
    page = torch.randperm(len(length) * widest + 2, generator=generator)
    table = page[2:].view(len(length), widest).int()
    slot = torch.zeros(len(page), page_size, dtype=torch.bool)
    for b, n in enumerate(length):
        table[b, -(-n // page_size) :] = -1
        for p in range(n):
            slot[table[b, p // page_size], p % page_size] = True
    shape = (len(page), kv_heads, page_size) if head_major else (len(page), page_size, kv_heads)
    keys = torch.randn(*shape, columns, generator=generator)
    if special:  # zeros and extremes of magnitude
        keys[::3, 0] = 0.0
        keys[1::3] *= 1e-30
        keys[2::3] *= 1e18
    data, scale = quantise(format, keys)
    if head_major:  # a view: only the heads' places move
        data, scale = data.transpose(1, 2), None if scale is None else scale.transpose(1, 2)
    assert (scale is not None) == (format in SCALED)
    _poison(data, ~slot)
    if scale is not None:
        _poison(scale, ~slot)
    if hole:
        table[:, 0] = -1
    return {
        "q": torch.randn(len(seq), heads, width, generator=generator).to(of),
        "projection": _projection(generator, kind, kv_heads, width, columns),
        "cache": ScoreCache(data, scale, format),
        "pages": Pages(table, torch.tensor(length, dtype=torch.int32), page_size,
                       max(length, default=0) if max_length is None else max_length),
        "rows": Rows(torch.tensor(seq, dtype=torch.int32), torch.tensor(position, dtype=torch.int32)), **more,
    }  # fmt: skip


def _case(name: str, error: float = 0.0, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), error, invalid)


_THREE: Mapping[str, Any] = MappingProxyType(
    {"seq": [0, 2, 1, 0, 2], "position": [6, 2, -1, 3, 12], "length": [7, 0, 13]}
)
_LONG: Mapping[str, Any] = MappingProxyType(
    {"seq": [0] * 70 + [1], "position": [*range(540, 610), 4], "length": [610, 5]}
)
# fp32 sums of up to 64 products where the reference has fp64: a few units of 2^-24 of the largest
# score. int8 sums are exact integers and the products after them are in a stated order: no error.
_FP32 = 1e-6  # largest seen: 1.9e-7

CASES = (
    _case("small", _FP32, **_THREE),
    _case("gqa_int8", heads=6, kv_heads=2, width=16, format="score_int8", **_THREE),
    _case("mha_bf16_pairs", _FP32, heads=4, kv_heads=4, of=torch.bfloat16, format="score_bf16", kind="pairs", **_THREE),
    _case("mqa_fp8", _FP32, heads=5, width=24, columns=6, of=torch.float16, format="score_fp8", **_THREE),
    _case("gqa_fp16", _FP32, heads=6, kv_heads=2, format="score_fp16", **_THREE),
    _case("pca_fp32", _FP32, heads=6, kv_heads=2, width=16, kind="pca", **_THREE),
    _case("pca_int8", heads=6, kv_heads=2, width=16, format="score_int8", kind="pca", scale=0.3, **_THREE),
    _case("pca_fp8", _FP32, heads=6, kv_heads=2, width=16, format="score_fp8", kind="pca", **_THREE),
    _case("full_width", _FP32, width=8, columns=8, max_length=19, scale=1.0, **_THREE),
    _case("head_major", _FP32, heads=6, kv_heads=3, head_major=True, format="score_bf16", **_THREE),
    _case("tiles_fp32", _FP32, heads=3, width=32, columns=16, page_size=16, max_length=1100, **_LONG),
    _case("tiles_int8", heads=6, kv_heads=2, columns=8, page_size=7, max_length=1100, format="score_int8", **_LONG),
    _case("many_heads", _FP32, heads=140, kv_heads=2, columns=8, **_THREE),
    _case("holes", _FP32, heads=6, kv_heads=2, hole=True, **_THREE),
    _case("holes_int8", page_size=16, format="score_int8", hole=True, **_LONG),
    _case("special_int8", special=True, format="score_int8", **_THREE),
    _case("special_fp8", _FP32, special=True, format="score_fp8", **_THREE),
    _case("past_the_end", _FP32, seq=[0, 1], position=[2**31 - 1, 9], length=[5, 6], max_length=11),
    _case("unknown_seq", _FP32, invalid=True, seq=[0, 7, -1], position=[4, 4, 4], length=[5, 6]),
    _case("cut_short", _FP32, invalid=True, seq=[0, 1], position=[8, 3], length=[9, 4], max_length=6),
    _case("no_rows", seq=[], position=[], length=[3], format="score_int8", kind="pca"),
    _case("no_sequences", seq=[0], position=[-1], length=[], max_length=3),
    _case("no_length", seq=[0, 0], position=[0, -1], length=[0], max_length=9, format="score_fp8"),
    _case("no_columns", seq=[0], position=[0], length=[0]),
    _case("no_heads", heads=0, kv_heads=0, **_THREE),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`."""
    rows: Rows = inputs["rows"]
    one = slice(row, row + 1)
    return {**inputs, "q": inputs["q"][one], "rows": Rows(rows.seq[one], rows.position[one])}


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    cache, by = inputs["cache"], inputs["projection"]
    pages: Pages = inputs["pages"]
    rows: Rows = inputs["rows"]
    looked = torch.zeros_like(pages.table, dtype=torch.bool)
    asked = torch.zeros_like(pages.length, dtype=torch.bool)
    seen = torch.zeros(cache.data.shape[:2], dtype=torch.bool)
    live = torch.zeros_like(rows.seq, dtype=torch.bool)
    for r, (b, last) in enumerate(zip(rows.seq.tolist(), rows.position.tolist(), strict=True)):
        if last < 0 or not 0 <= b < len(pages.length):
            continue
        asked[b] = True
        for p in range(min(last + 1, int(pages.length[b]), pages.max_length)):
            looked[b, p // pages.page_size] = True
            page = int(pages.table[b, p // pages.page_size])
            if 0 <= page < len(seen):
                seen[page, p % pages.page_size] = live[r] = True
    kept = slice(None) if by.dims is None else by.dims
    read = [rows.seq, rows.position, pages.table[looked], pages.length[asked], inputs["q"][live][..., kept],
            by.dims, by.basis, cache.data[seen], None if cache.scale is None else cache.scale[seen]]  # fmt: skip
    return sum(t.numel() * t.element_size() for t in [*read, *outputs] if t is not None)
