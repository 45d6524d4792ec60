"""Laws of the e4m3 quantisers and of ue8m0: bytes by hand, and where the look-alikes part."""

import math

import pytest
import torch

from tilesieve.formats import fp8

NAMES = pytest.mark.parametrize("name", fp8.NAMES)


def table() -> list[float]:
    """The 127 values of e4m3fn codes 0 to 126, from the format's definition: no torch in it."""
    values = [m / 8 * 2.0**-6 for m in range(8)]
    values += [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8)]
    return values[:127]  # code 127 is NaN


def nearest(x: float) -> int:
    """The code of the nearest value, of two equally near ones the even code; x within +-448."""
    values = table()
    best = min(range(127), key=lambda c: (abs(values[c] - abs(x)), c % 2))
    return best | (128 if math.copysign(1.0, x) < 0 else 0)


def byte(code: torch.Tensor) -> list[int]:
    return code.view(torch.uint8).flatten().tolist()


def one(name: str, *values: float) -> tuple[list[int], float]:
    code, scale = fp8.quantise_rows(name, torch.tensor([values], dtype=torch.float32))
    assert scale.shape == (1, 1)
    return byte(code), scale.item()


def test_the_table_is_torch_s():
    assert table()[:10] == [m * 2.0**-9 for m in range(10)] and table()[-1] == 448.0 and table()[56] == 1.0
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert codes.float().tolist() == table()


@NAMES
def test_bytes_by_hand(name):
    """amax 448, so scale 1 under every name. Between 16 and 32 steps of 2, below 2^-6 steps of 2^-9."""
    values = (448.0, 1.0, -1.0, 17.0, 19.0, 0.0, -0.0, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 2.0**-6, 432.0, 431.0)
    want = [0x7E, 0x38, 0xB8, 0x58, 0x5A, 0x00, 0x80, 0x01, 0x00, 0x02, 0x08, 0x7E, 0x7D]
    assert one(name, *values) == (want, 1.0)


@NAMES
def test_every_code_is_the_nearest_half_to_even(name):
    values = table()
    middle = [(a + b) / 2 for a, b in zip(values, values[1:], strict=False)]
    near = [math.nextafter(m, d) for m in middle for d in (0.0, 1e9)]
    # fp32 holds the middles exactly; next to them go the fp32 neighbours, not the fp64 ones.
    x = torch.tensor([*values, *middle], dtype=torch.float32)
    x = torch.cat([x, torch.nextafter(x, x + 1), torch.nextafter(x, x - 1).clamp(min=0), torch.tensor(near)])
    x = torch.cat([x, -x])
    x = x[x.abs() <= 448]
    code, scale = fp8.quantise_rows(name, torch.cat([torch.full((len(x), 1), 448.0), x[:, None]], 1), block=2)
    assert scale.eq(1).all()
    assert byte(code[:, 1]) == [nearest(v) for v in x.tolist()]


@pytest.mark.parametrize("name", ["e4m3_amax_pow2", "e4m3_scale_pow2"])
@pytest.mark.parametrize("power", [-13, -12, -1, 0, 1, 50, 119])
def test_an_exact_power_of_two_stays_itself(name, power):
    amax = 448 * 2.0**power
    assert one(name, amax, amax / 2) == ([0x7E, 0x76], 2.0**power)
    above = torch.nextafter(torch.tensor(amax), torch.tensor(torch.inf)).item()
    assert one(name, above)[1] == 2.0 ** (power + 1)
    below = torch.nextafter(torch.tensor(amax), torch.tensor(0.0)).item()
    assert one(name, below)[1] == 2.0**power or power == -13


def test_the_look_alikes_part_at_small_amax():
    """The floor of amax leaves scales down to 2^-22, the floor of the scale down to 2^-13."""
    assert [one(name, 0.0) for name in fp8.NAMES] == [
        ([0], 2.0**-22),
        ([0], 2.0**-13),
        ([0], (torch.tensor(1e-4) / torch.tensor(448.0)).item()),
        ([0], torch.tensor(1e-10).item()),
    ]
    # 448 * 2^-20 under one floor and above the other: 448 codes as 0x7E or as 448 / 2^7 = 3.5.
    small = 448 * 2.0**-20
    assert one("e4m3_amax_pow2", small) == ([0x7E], 2.0**-20)
    assert one("e4m3_scale_pow2", small) == ([nearest(3.5)], 2.0**-13)
    # Below amax 1e-4 three of them agree on nothing; HISA's alone still uses its full range.
    tiny = 448 * 2.0**-26
    assert one("e4m3_amax_pow2", tiny) == ([nearest(448 / 16)], 2.0**-22)
    assert one("e4m3_scale_pow2", tiny) == ([nearest(448 / 2**13)], 2.0**-13)
    assert one("e4m3_scale_linear", tiny) == ([0x7E], 2.0**-26)
    assert one("e4m3_amax_linear", tiny)[0] == [nearest(tiny / 1e-4 * 448)]


def test_pow2_and_linear_part_between_powers():
    # amax 449: a linear scale uses the top code, a power of two the next octave.
    assert one("e4m3_amax_linear", 449.0) == ([0x7E], (torch.tensor(449.0) / torch.tensor(448.0)).item())
    assert one("e4m3_amax_pow2", 449.0) == ([nearest(224.5)], 2.0)


def test_dividing_and_multiplying_by_the_reciprocal_give_the_same_power_of_two():
    """All mantissas of one octave: no scale can depend on which a kernel does."""
    amax = ((127 << 23) + torch.arange(1 << 23, dtype=torch.int32)).view(torch.float32)
    product = fp8.pow2_ceil(amax * torch.tensor(1 / 448))
    assert torch.equal(product, fp8.scale_of("e4m3_amax_pow2", amax))
    ceil = fp8.scale_of("e4m3_amax_pow2", amax).double()
    assert bool(((ceil >= amax.double() / 448) & (ceil < amax.double() / 224)).all())


@NAMES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_against_the_words(name, dtype):
    """Group by group with Python's floats; K = 300 leaves a last group of 44."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(6, 300, generator=generator) * torch.logspace(-7, 4, 6)[:, None]).to(dtype)
    code, scale = fp8.quantise_rows(name, x)
    assert code.shape == x.shape and scale.shape == (6, 3) and scale.dtype == torch.float32
    rule = fp8.quantiser(name)
    for r in range(6):
        for g in range(3):
            group = x[r, 128 * g : 128 * (g + 1)].float()
            # fp64 quotients of fp32 numbers round to fp32 as the fp32 division does.
            amax = max(group.abs().max().item(), torch.tensor(rule.least_amax).item())
            want = torch.tensor(amax / 448).clamp(min=torch.tensor(rule.least_scale).item()).item()
            if rule.pow2:
                want = 2.0 ** math.ceil(math.log2(want))
            assert scale[r, g].item() == want
            ratios = [torch.tensor(v / want).clamp(-448, 448).item() for v in group.tolist()]
            assert byte(code[r, 128 * g : 128 * (g + 1)]) == [nearest(v) for v in ratios]
    back = fp8.dequantise_rows(code, scale)
    for r in range(6):
        for c in (0, 127, 128, 255, 256, 299):
            assert back[r, c] == code[r, c].float() * scale[r, c // 128]


@NAMES
def test_the_error_is_half_a_step(name):
    x = torch.randn(50, 256, generator=torch.Generator().manual_seed(1))
    code, scale = fp8.quantise_rows(name, x)
    wide = scale.double().repeat_interleave(128, -1)
    error = (x.double() - fp8.dequantise_rows(code, scale).double()).abs()
    # 1 + 1e-6: a linear quotient and the product back are each rounded in fp32; largest seen 1.0000001.
    assert bool((error <= torch.maximum(x.double().abs() / 16, wide / 1024) * (1 + 1e-6)).all())


@NAMES
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (130, 300), (1, 1), (256, 127), (5, 129)])
def test_weight_blocks_are_their_own_groups(name, rows, columns):
    w = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(rows))
    code, scale = fp8.quantise_blocks(name, w)
    assert code.shape == w.shape and scale.shape == (2, -(-rows // 128), -(-columns // 128))
    back = fp8.dequantise_blocks(code, scale)
    for e in range(2):
        for i in range(scale.shape[1]):
            for j in range(scale.shape[2]):
                part = (e, slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
                flat = w[part].reshape(1, -1)
                want, one_scale = fp8.quantise_rows(name, flat, block=flat.shape[1])
                assert byte(code[part]) == byte(want)
                assert scale[e, i, j] == one_scale.item()
                assert torch.equal(back[part].reshape(1, -1), fp8.dequantise_rows(want, one_scale, block=flat.shape[1]))


@NAMES
def test_a_row_does_not_depend_on_its_neighbours(name):
    x = torch.randn(9, 200)
    code, scale = fp8.quantise_rows(name, x)
    for r in range(9):
        alone, alone_scale = fp8.quantise_rows(name, x[r : r + 1].clone())
        assert byte(alone) == byte(code[r]) and torch.equal(alone_scale[0], scale[r])
    wide = torch.full((18, 200), torch.nan)
    wide[::2] = x
    assert byte(fp8.quantise_rows(name, wide[::2])[0]) == byte(code)


@NAMES
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_group(name, bad):
    x = torch.randn(3, 256)
    clean_code, clean_scale = fp8.quantise_rows(name, x)
    x[1, 130] = bad
    code, scale = fp8.quantise_rows(name, x)
    assert scale[1, 1].isnan() and byte(code[1, 128:]) == [0] * 128
    back = fp8.dequantise_rows(code, scale)
    assert back[1, 128:].isnan().all() and back[1, :128].isfinite().all() and back[[0, 2]].isfinite().all()
    keep = torch.ones(3, 2, dtype=torch.bool)
    keep[1, 1] = False
    assert torch.equal(scale[keep], clean_scale[keep])
    assert byte(code.unflatten(1, (2, 128))[keep]) == byte(clean_code.unflatten(1, (2, 128))[keep])
    w = torch.randn(130, 130)
    w[129, 0] = bad
    code, scale = fp8.quantise_blocks(name, w)
    assert scale.isnan().tolist() == [[False, False], [True, False]]


@NAMES
def test_large_floats_do_not_overflow(name):
    """Below 248 * 2^120; a power-of-two scale may round what is not to 2^128, which fp32 has not."""
    x = torch.tensor([[247 * 2.0**120, -247 * 2.0**120, 1e37]])
    code, scale = fp8.quantise_rows(name, x)
    back = fp8.dequantise_rows(code, scale)
    assert back.isfinite().all() and bool(((back - x).abs() <= x.abs() / 16).all())


@NAMES
def test_a_kept_power_of_two_vector_is_kept_again_unchanged(name):
    if not fp8.quantiser(name).pow2:
        return
    x = torch.randn(20, 128)
    code, scale = fp8.quantise_rows(name, x)
    back = fp8.dequantise_rows(code, scale)
    again, again_scale = fp8.quantise_rows(name, back)
    # The scale may be halved where the largest code rounded down to 448 / 2^n: values are the same.
    assert torch.equal(fp8.dequantise_rows(again, again_scale), back)


def test_empty_shapes():
    for shape in ((0, 256), (3, 0), (0, 0), (2, 0, 5)):
        code, scale = fp8.quantise_rows("e4m3_amax_pow2", torch.empty(shape))
        assert code.shape == shape and scale.shape == (*shape[:-1], -(-shape[-1] // 128))
        assert fp8.dequantise_rows(code, scale).shape == shape
        if len(shape) > 1:
            code, scale = fp8.quantise_blocks("e4m3_amax_linear", torch.empty(shape))
            assert scale.shape == (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
            assert fp8.dequantise_blocks(code, scale).shape == shape


# --- ue8m0


def test_exponent_bytes_by_hand():
    scale = torch.tensor([[1.0, 2.0, 0.5], [2.0**-22, 2.0**-13, 2.0**127]])
    packed = fp8.pack_ue8m0(scale)
    assert packed.dtype == torch.uint8 and packed.tolist() == [[127, 128, 126], [105, 114, 254]]
    assert torch.equal(fp8.unpack_ue8m0(packed), scale)


def test_every_byte_comes_back():
    packed = torch.arange(256, dtype=torch.uint8)
    scale = fp8.unpack_ue8m0(packed)
    assert scale[:255].double().tolist() == [2.0 ** (b - 127) for b in range(255)] and scale[255].isnan()
    assert torch.equal(fp8.pack_ue8m0(scale), packed)
    assert torch.equal(fp8.pack_ue8m0(scale.view(16, 16).t()), packed.view(16, 16).t())


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, 1.5, 3.0, torch.inf, -torch.inf, 1e-45, 1.0000001, 2.0**-128])
def test_anything_else_is_refused(bad):
    with pytest.raises(ValueError, match="scale holds .*; allowed: powers of two"):
        fp8.pack_ue8m0(torch.tensor([1.0, bad]))


def test_pow2_scales_pack_and_linear_ones_do_not():
    x = torch.randn(4, 300)
    for name in fp8.NAMES:
        _, scale = fp8.quantise_rows(name, x)
        if fp8.quantiser(name).pow2:
            assert torch.equal(fp8.unpack_ue8m0(fp8.pack_ue8m0(scale)), scale)
        else:
            with pytest.raises(ValueError, match="powers of two"):
                fp8.pack_ue8m0(scale)


def test_wrong_input_is_named():
    x, code, scale = torch.ones(2, 256), torch.zeros(2, 256).to(torch.float8_e4m3fn), torch.ones(2, 2)
    for call, match in (
        (lambda: fp8.quantise_rows("e4m3", x), "quantiser is 'e4m3'; allowed: e4m3_amax_pow2"),
        (lambda: fp8.quantise_rows("e4m3_amax_pow2", x.double()), r"x is torch.float64 \(2, 256\)"),
        (lambda: fp8.quantise_rows("e4m3_amax_pow2", x, block=0), "block is 0; allowed: >= 1"),
        (lambda: fp8.quantise_blocks("e4m3_amax_pow2", x[0]), r"w is torch.float32 \(256,\)"),
        (lambda: fp8.quantise_blocks("e4m3_amax_pow2", x, block=(128, 0)), r"block is \(128, 0\)"),
        (lambda: fp8.dequantise_rows(code.float(), scale), "code is torch.float32"),
        (lambda: fp8.dequantise_rows(code, scale[:, :1]), r"scale is torch.float32 \(2, 1\); code \(2, 256\) needs"),
        (lambda: fp8.dequantise_rows(code, scale.double()), "scale is torch.float64"),
        (lambda: fp8.dequantise_blocks(code, scale), r"scale is torch.float32 \(2, 2\).*needs torch.float32 \(1, 2\)"),
        (lambda: fp8.dequantise_blocks(code[0], scale), r"code has shape \(256,\)"),
        (lambda: fp8.pack_ue8m0(scale.double()), "scale is torch.float64"),
        (lambda: fp8.unpack_ue8m0(torch.zeros(2).int()), "packed is torch.int32"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
