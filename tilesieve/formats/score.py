"""Paged caches of reduced keys for scoring: score_fp32, score_bf16, score_fp16, score_int8, score_fp8.

Quantisers are named by their scale and their rounding; each works on the last dimension, one
scale per vector, in fp32:

int8_amax127_rne  scale = amax / 127; code = x / scale, rounded half to even, clamped to +-127
e4m3_amax448_rne  scale = amax / 448; code = x / scale, clamped to +-448, rounded half to even

Neither amax nor scale is clamped from below, so a small vector keeps its relative precision. A
vector of zeros (or one so small that its scale underflows) gets scale 0 and zero codes: it
dequantises to exact zeros and nothing is divided by 0. A vector that holds a NaN or an infinity
gets scale NaN and zero codes: its scores are NaN, and a NaN is never selected. The other formats
round once (half to even) and keep NaN and infinities; past 65504 score_fp16 makes an infinity.
A key cache is itself a score cache of all its dimensions: kv_fp16 reads as score_fp16.
"""

import torch
from torch import Tensor

from tilesieve.types import Projection, ScoreCache

DTYPES = (
    ("score_fp32", torch.float32),
    ("score_bf16", torch.bfloat16),
    ("score_fp16", torch.float16),
    ("score_int8", torch.int8),
    ("score_fp8", torch.float8_e4m3fn),
)
FORMATS = tuple(name for name, _ in DTYPES)
SCALED = ("score_int8", "score_fp8")

# Rows per fp64 product in `reduce`: the same for every call, so that a row keeps its bits.
_TILE = 64


def score_dtype(format: str) -> torch.dtype:
    """The element type behind a tag. Raises ValueError for an unknown tag."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; allowed: {', '.join(FORMATS)}")
    return dict(DTYPES)[format]


def bytes_per_token(format: str, heads: int, width: int) -> int:
    """Bytes that one token of one layer takes: G heads of C numbers, and their scales."""
    return heads * (width * score_dtype(format).itemsize + 4 * (format in SCALED))


def new_scores(format: str, pages: int, page_size: int, heads: int, width: int,
               device: torch.device | str = "cpu") -> ScoreCache:  # fmt: skip
    """An empty cache (zeros): heads G, width C of a reduced key."""
    data = torch.zeros(pages, page_size, heads, width, dtype=score_dtype(format), device=device)
    scale = torch.zeros(pages, page_size, heads, device=device) if format in SCALED else None
    return ScoreCache(data, scale, format)


def require(cache: ScoreCache) -> None:
    """Raises ValueError when the tensors are not what the tag says."""
    dtype = score_dtype(cache.format)
    if cache.data.dim() != 4 or cache.data.dtype != dtype:
        raise ValueError(f"cache.data is {cache.data.dtype} {tuple(cache.data.shape)}; its tag {cache.format!r} "
                         f"says {dtype} with 4 dimensions")  # fmt: skip
    if cache.format not in SCALED:
        if cache.scale is not None:
            raise ValueError(f"cache.scale is given; its tag {cache.format!r} has none")
        return
    if cache.scale is None:
        raise ValueError(f"cache.scale is None; its tag {cache.format!r} needs fp32 {tuple(cache.data.shape[:3])}")
    if cache.scale.dtype != torch.float32 or cache.scale.shape != cache.data.shape[:3]:
        raise ValueError(f"cache.scale is {cache.scale.dtype} {tuple(cache.scale.shape)}; its tag {cache.format!r} "
                         f"says fp32 {tuple(cache.data.shape[:3])}")  # fmt: skip


def require_projection(projection: Projection, heads: int, width: int, columns: int) -> None:
    """Raises ValueError unless `projection` reduces G = `heads` keys of D = `width` to C = `columns`."""
    dims, basis, mean = projection.dims, projection.basis, projection.mean
    if (dims is None) == (basis is None):
        both = "neither dims nor basis" if dims is None else "both dims and basis"
        raise ValueError(f"projection {projection.kind!r} has {both}; allowed: one of them")
    if projection.width != width:
        raise ValueError(f"projection.width is {projection.width}; the data has D = {width}")
    if not 1 <= columns <= width:
        raise ValueError(f"d_score is {columns} (the cache's last dimension); allowed: 1 to D = {width}")
    fields = (
        ("dims", dims, (columns,), torch.int64),
        ("basis", basis, (heads, width, columns), torch.float32),
        ("mean", mean, (heads, width), torch.float32),
    )
    for name, tensor, shape, dtype in fields:
        if tensor is not None and (tuple(tensor.shape) != shape or tensor.dtype != dtype):
            raise ValueError(f"projection.{name} is {tensor.dtype} {tuple(tensor.shape)}; allowed: {dtype} {shape}, "
                             f"as the cache has G = {heads} and d_score = {columns}")  # fmt: skip


def reduce(x_NGJD: Tensor, dims_C: Tensor | None, basis_GDC: Tensor | None, mean_GD: Tensor | None) -> Tensor:
    """fp32 [N,G,J,C]: the rows of x less the mean, on the kept dimensions or the basis.

    Products are summed in fp64, in tiles of one shape, and rounded once: a row's bits depend on
    nothing but the row. J is 1 for keys and H / G for queries (whose mean is None).
    """
    if dims_C is not None:
        kept = x_NGJD[..., dims_C].float()
        return kept if mean_GD is None else kept - mean_GD[:, None, dims_C]
    assert basis_GDC is not None
    x = x_NGJD.double()
    if mean_GD is not None:
        x = x - mean_GD[:, None].double()
    n, heads, per, width = x.shape
    columns = basis_GDC.shape[-1]
    basis = basis_GDC.double()
    flat_GMD = x.transpose(0, 1).reshape(heads, n * per, width)
    result = torch.empty(heads, n * per, columns, device=x.device)
    tile = x.new_zeros(heads, _TILE, width)
    for start in range(0, n * per, _TILE):
        part = flat_GMD[:, start : start + _TILE]
        tile[:, : part.shape[1]] = part  # rows of an earlier tile below it do not touch these
        result[:, start : start + _TILE] = torch.bmm(tile, basis)[:, : part.shape[1]].float()
    return result.view(heads, n, per, columns).transpose(0, 1)


def _ratio(x: Tensor, top: float) -> tuple[Tensor, Tensor]:
    """x / scale, not yet rounded, and scale = amax / top; the two special vectors as stated above."""
    amax = x.abs().amax(-1)
    # Tensor by tensor: a GPU divides by a Python number as a product with its reciprocal.
    scale = amax / torch.full_like(amax, top)
    finite = amax.isfinite()
    divisor = torch.where(finite & (scale > 0), scale, torch.ones_like(scale))
    ratio = torch.where(finite[..., None], x / divisor[..., None], torch.zeros_like(x))
    return ratio, torch.where(finite, scale, torch.full_like(scale, torch.nan))


def int8_amax127_rne(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [...,C] -> int8 codes [...,C] and fp32 scale [...]. |x - code * scale| <= amax / 254, but
    for rounding in fp32; where the scale is denormal (amax < 2^-119) no such bound holds."""
    ratio, scale = _ratio(x, 127.0)
    return ratio.round().clamp(-127.0, 127.0).to(torch.int8), scale


def e4m3_amax448_rne(x: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 [...,C] -> e4m3fn codes [...,C] and fp32 scale [...]. |x - code * scale| is at most
    max(|x| / 16, scale / 1024), but for rounding in fp32 and denormal scales."""
    ratio, scale = _ratio(x, 448.0)
    return ratio.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale


def quantise(format: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """fp32 [...,C] as a cache of `format` keeps it: data and, where the format has one, scale."""
    dtype = score_dtype(format)
    if format == "score_int8":
        return int8_amax127_rne(x)
    if format == "score_fp8":
        return e4m3_amax448_rne(x)
    return x.to(dtype), None


def dequantise(format: str, data: Tensor, scale: Tensor | None) -> Tensor:
    """fp32 [...,C]: code * scale, rounded to fp32."""
    score_dtype(format)
    return data.float() if scale is None else data.float() * scale[..., None]
