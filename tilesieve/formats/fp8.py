"""e4m3 with scales per group of a row or per block of a weight, and ue8m0: scales as exponents.

A quantiser is named by what it clamps from below and by how it rounds its scale. Their scales look
alike and differ (amax is the largest magnitude of a group, all arithmetic fp32):

e4m3_amax_pow2     scale = 2^ceil(log2(max(amax, 1e-4) / 448)): 2^-22 at least
e4m3_scale_pow2    scale = 2^ceil(log2(max(amax / 448, 1e-4))): 2^-13 at least
e4m3_amax_linear   scale = max(amax, 1e-4) / 448
e4m3_scale_linear  scale = max(amax / 448, 1e-10)

The first is DeepSeek's act_quant with scale_fmt ue8m0, the third the same without, the second the
quantiser of FlashMLA's tests, the last HISA's block keys. The logarithm is taken on the bit pattern: an exact
power of two stays itself. 448 divides: kernels that multiply with fp32(1/448) get the same powers
of two and linear scales one unit in the last place off. (Without any clamp: formats/score.py.)

code = x / scale, clamped to +-448, rounded half to even. A scale is stored as fp32 and multiplied
back, also a power of two. A group of zeros has the least scale and zero codes. A group that holds
a NaN or an infinity has scale NaN and zero codes: it dequantises to NaN, all of it, and spoils no
other group. Magnitudes from 248 * 2^120 on may round to 2^128 and come back as infinity.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

TOP = 448.0
BLOCK = 128


@dataclass(frozen=True)
class Quantiser:
    """least_amax, least_scale: what is clamped from below, 0 if it is not; pow2: the scale is rounded up
    to a power of two."""

    name: str
    least_amax: float
    least_scale: float
    pow2: bool


QUANTISERS = (
    Quantiser("e4m3_amax_pow2", 1e-4, 0.0, True),
    Quantiser("e4m3_scale_pow2", 0.0, 1e-4, True),
    Quantiser("e4m3_amax_linear", 1e-4, 0.0, False),
    Quantiser("e4m3_scale_linear", 0.0, 1e-10, False),
)
NAMES = tuple(quantiser.name for quantiser in QUANTISERS)


def quantiser(name: str) -> Quantiser:
    """By name. Raises ValueError for an unknown one."""
    if name not in NAMES:
        raise ValueError(f"quantiser is {name!r}; allowed: {', '.join(NAMES)}")
    return QUANTISERS[NAMES.index(name)]


def pow2_ceil(x: Tensor) -> Tensor:
    """fp32, positive and normal -> the least power of two that is not smaller."""
    bits = x.view(torch.int32)
    return torch.where((bits & 0x7FFFFF) != 0, (bits & ~0x7FFFFF) + (1 << 23), bits).view(torch.float32)


def scale_of(name: str, amax: Tensor) -> Tensor:
    """fp32 scale of groups whose largest magnitude is amax (fp32, any shape); NaN where that is not finite."""
    rule = quantiser(name)
    # Tensor by tensor: a GPU divides by a Python number as a product with its reciprocal.
    scale = amax.clamp(min=rule.least_amax) / torch.full_like(amax, TOP)
    scale = scale.clamp(min=rule.least_scale)
    if rule.pow2:
        scale = pow2_ceil(scale)
    return torch.where(amax.isfinite(), scale, torch.full_like(scale, torch.nan))


def _codes(x: Tensor, scale: Tensor) -> Tensor:
    """x / scale as e4m3; scale is broadcast. Zero where the scale is NaN."""
    known = scale.isfinite()
    ratio = torch.where(known, x / torch.where(known, scale, torch.ones_like(scale)), torch.zeros_like(x))
    return ratio.clamp(-TOP, TOP).to(torch.float8_e4m3fn)


def _expect(name: str, x: Tensor, dims: int, sizes: tuple[int, ...]) -> None:
    if x.dim() < dims or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"{name} is {x.dtype} {tuple(x.shape)}; allowed: fp32, bf16 or fp16 with {dims} dimensions "
                         "or more")  # fmt: skip
    _expect_blocks(sizes)


def _expect_blocks(sizes: tuple[int, ...]) -> None:
    if any(size < 1 for size in sizes):
        raise ValueError(f"block is {sizes[0] if len(sizes) == 1 else sizes}; allowed: >= 1")


def _expect_coded(code: Tensor, scale: Tensor, shape: tuple[int, ...]) -> None:
    if code.dtype != torch.float8_e4m3fn:
        raise ValueError(f"code is {code.dtype}; allowed: torch.float8_e4m3fn")
    if scale.dtype != torch.float32 or tuple(scale.shape) != shape:
        raise ValueError(f"scale is {scale.dtype} {tuple(scale.shape)}; code {tuple(code.shape)} needs "
                         f"torch.float32 {shape}")  # fmt: skip


def quantise_rows(name: str, x: Tensor, *, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Activations [..,K] -> codes e4m3fn [..,K] and fp32 scale [.., ceil(K/block)]: a scale for each
    `block` consecutive columns of a row, the last of them fewer where `block` does not divide K.

    x is fp32, bf16 or fp16. Raises ValueError naming the argument.
    """
    _expect("x", x, 1, (block,))
    width = x.shape[-1]
    tail = -width % block
    # Zeros behind a ragged group move no amax.
    grouped = pad(x.float(), (0, tail)).unflatten(-1, (-1, block)) if width else x.float().unflatten(-1, (0, block))
    scale = scale_of(name, grouped.abs().amax(-1))
    return _codes(grouped, scale[..., None]).flatten(-2)[..., :width].contiguous(), scale


def dequantise_rows(code: Tensor, scale: Tensor, *, block: int = BLOCK) -> Tensor:
    """fp32 [..,K]: code * scale of its group, rounded to fp32."""
    _expect_blocks((block,))
    width = code.shape[-1]
    _expect_coded(code, scale, (*code.shape[:-1], -(-width // block)))
    return code.float() * scale.repeat_interleave(block, -1)[..., :width]


def quantise_blocks(name: str, w: Tensor, *, block: tuple[int, int] = (BLOCK, BLOCK)) -> tuple[Tensor, Tensor]:
    """Weights [..,N,K] -> codes e4m3fn [..,N,K] and fp32 scale [.., ceil(N/block), ceil(K/block)].

    w is fp32, bf16 or fp16. The last block of a direction is smaller where `block` does not divide
    it. Checkpoints that call this scale "scale_inv" multiply by it too. Raises ValueError.
    """
    _expect("w", w, 2, block)
    rows, columns = w.shape[-2:]
    if rows == 0 or columns == 0:
        shape = (*w.shape[:-2], -(-rows // block[0]), -(-columns // block[1]))
        return w.to(torch.float8_e4m3fn), torch.empty(shape, dtype=torch.float32, device=w.device)
    padded = pad(w.float(), (0, -columns % block[1], 0, -rows % block[0]))
    tiles = padded.unflatten(-1, (-1, block[1])).unflatten(-3, (-1, block[0]))  # [.., Nb, block, Kb, block]
    scale = scale_of(name, tiles.abs().amax((-3, -1)))
    code = _codes(tiles, scale[..., :, None, :, None])
    return code.flatten(-2).flatten(-3, -2)[..., :rows, :columns].contiguous(), scale


def dequantise_blocks(code: Tensor, scale: Tensor, *, block: tuple[int, int] = (BLOCK, BLOCK)) -> Tensor:
    """fp32 [..,N,K]: code * scale of its block, rounded to fp32."""
    _expect_blocks(block)
    if code.dim() < 2:
        raise ValueError(f"code has shape {tuple(code.shape)}; allowed: [.., N, K]")
    rows, columns = code.shape[-2:]
    _expect_coded(code, scale, (*code.shape[:-2], -(-rows // block[0]), -(-columns // block[1])))
    wide = scale.repeat_interleave(block[1], -1)[..., :columns]
    return code.float() * wide.repeat_interleave(block[0], -2)[..., :rows, :]


def pack_ue8m0(scale: Tensor) -> Tensor:
    """fp32 powers of two, 2^-127 to 2^127 -> uint8 exponents of the same shape: byte b means 2^(b-127), 255 NaN.

    Reads the tensor back. Raises ValueError where a scale is anything but a power of two or NaN.
    """
    if scale.dtype != torch.float32:
        raise ValueError(f"scale is {scale.dtype}; allowed: torch.float32")
    bits = scale.contiguous().view(torch.int32)
    exponent = bits >> 23  # negative where the sign is set
    normal = ((bits & 0x7FFFFF) == 0) & (exponent >= 1) & (exponent <= 254)
    least = bits == 1 << 22  # 2^-127 is denormal in fp32
    unknown = scale.isnan()
    bad = ~(normal | least | unknown)
    if bool(bad.any()):
        raise ValueError(f"scale holds {scale[bad].flatten()[0].item()!r}; allowed: powers of two from 2^-127 to "
                         "2^127, and NaN")  # fmt: skip
    return torch.where(unknown, 255, torch.where(least, 0, exponent)).to(torch.uint8)


def unpack_ue8m0(packed: Tensor) -> Tensor:
    """uint8 exponents -> fp32 powers of two; 255 is NaN."""
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed is {packed.dtype}; allowed: torch.uint8")
    bits = packed.int() << 23
    bits = torch.where(packed == 0, 1 << 22, bits)
    return torch.where(packed == 255, 0x7FC00000, bits).view(torch.float32)
