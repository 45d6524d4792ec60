"""Laws of the score cache tags and of their quantisers."""

import itertools

import numpy as np
import pytest
import torch

from tilesieve.formats import score
from tilesieve.types import Projection, ScoreCache

QUANTISERS = (score.int8_amax127_rne, score.e4m3_amax448_rne)


def vectors(rows: int = 2000, columns: int = 16) -> torch.Tensor:
    """Random vectors of magnitudes from 1e-30 to 1e30, some with one outlier."""
    x = torch.randn(rows, columns) * torch.logspace(-30, 30, rows)[:, None]
    x[::5, 3] *= 1e3
    return x


@pytest.mark.parametrize("format", score.FORMATS)
def test_a_new_cache_is_zero_and_as_large_as_stated(format):
    cache = score.new_scores(format, pages=5, page_size=4, heads=3, width=8)
    score.require(cache)
    assert cache.data.shape == (5, 4, 3, 8)
    held = [t for t in (cache.data, cache.scale) if t is not None]
    assert sum(t.numel() * t.element_size() for t in held) == 5 * 4 * score.bytes_per_token(format, 3, 8)
    assert not score.dequantise(format, cache.data, cache.scale).any()


def test_bytes_of_one_token_by_hand():
    sizes = {"score_fp32": 96, "score_bf16": 48, "score_fp16": 48, "score_int8": 36, "score_fp8": 36}
    assert {f: score.bytes_per_token(f, 3, 8) for f in score.FORMATS} == sizes


@pytest.mark.parametrize(("kept", "read"), itertools.permutations(score.FORMATS, 2))
def test_reading_as_another_format_raises(kept, read):
    cache = score.new_scores(kept, 2, 4, 3, 8)
    with pytest.raises(ValueError, match=r"cache\.(data|scale)"):
        score.require(ScoreCache(cache.data, cache.scale, read))


def test_a_missing_or_misshapen_scale_raises():
    cache = score.new_scores("score_int8", 2, 4, 3, 8)
    with pytest.raises(ValueError, match=r"cache\.scale is None; its tag 'score_int8' needs fp32 \(2, 4, 3\)"):
        score.require(ScoreCache(cache.data, None, "score_int8"))
    with pytest.raises(ValueError, match=r"cache\.scale is torch\.float32 \(2, 4\)"):
        score.require(ScoreCache(cache.data, torch.zeros(2, 4), "score_int8"))
    with pytest.raises(ValueError, match=r"cache\.scale is torch\.float64"):
        score.require(ScoreCache(cache.data, torch.zeros(2, 4, 3, dtype=torch.float64), "score_int8"))
    with pytest.raises(ValueError, match=r"cache\.data is torch\.int8 \(4, 3, 8\)"):
        score.require(ScoreCache(cache.data[0], cache.scale, "score_int8"))
    with pytest.raises(ValueError, match=r"format is 'score_int4'; allowed: score_fp32"):
        score.quantise("score_int4", torch.ones(1))


def test_int8_rounds_half_to_even():
    # amax 127: scale 1, so a code is the number itself, rounded.
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 3.49])
    codes, scale = score.int8_amax127_rne(x)
    assert scale == 1.0
    assert codes.tolist() == [127, 0, 2, 2, 0, -2, -2, 126, 3]


def test_fp8_rounds_half_to_even():
    # amax 448: scale 1. Between 16 and 32 e4m3 has steps of 2; below 2^-6 steps of 2^-9.
    x = torch.tensor([448.0, 17.0, 19.0, -17.0, 2.0**-10, 3 * 2.0**-10, 447.0, 432.0])
    codes, scale = score.e4m3_amax448_rne(x)
    assert scale == 1.0
    assert codes.float().tolist() == [448.0, 16.0, 20.0, -16.0, 0.0, 2 * 2.0**-9, 448.0, 448.0]


@pytest.mark.parametrize(("quantiser", "top"), zip(QUANTISERS, (127.0, 448.0), strict=True))
def test_the_scale_is_a_quotient_and_the_largest_code_is_the_top(quantiser, top):
    x = vectors()
    codes, scale = quantiser(x)
    amax = x.abs().amax(-1).numpy()
    want = (amax.astype(np.float64) / top).astype(np.float32)
    assert np.array_equal(scale.numpy(), want)
    # A product with the reciprocal would give other bits for some of these.
    assert not np.array_equal(want, amax * np.float32(1 / top))
    assert torch.equal(codes.float().abs().amax(-1), torch.full((len(x),), top))


def test_int8_error_is_half_a_step_of_its_own_vector():
    x = vectors()
    codes, scale = score.int8_amax127_rne(x)
    error = (x.double() - codes.double() * scale.double()[:, None]).abs()
    # 1 + 1e-4: x / scale is rounded before it is rounded to a code (largest seen 1 + 1e-5).
    assert (error <= 0.5 * scale.double()[:, None] * (1 + 1e-4)).all()
    assert (error.amax(-1) > 0.4 * scale).any()


def test_fp8_error_is_relative_to_each_number():
    x = vectors()
    codes, scale = score.e4m3_amax448_rne(x)
    error = (x.double() - codes.double() * scale.double()[:, None]).abs()
    bound = torch.maximum(x.double().abs() / 16, scale.double()[:, None] / 1024)
    assert (error <= bound * (1 + 1e-4)).all()
    assert (error > 0.9 * bound).any()


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_a_small_vector_keeps_its_precision(quantiser):
    """No floor under amax or scale: what a vector becomes does not depend on its unit."""
    x = torch.randn(50, 8)
    codes, scale = quantiser(x)
    for power in (-100, -40, 60):
        small, small_scale = quantiser(x * 2.0**power)
        assert torch.equal(small.float(), codes.float())
        assert torch.equal(small_scale, scale * 2.0**power)


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_zeros_are_exact_and_nothing_is_divided_by_zero(quantiser):
    x = torch.zeros(4, 6)
    x[1], x[2], x[3, 2] = -0.0, 1e-45, 1e-44  # the least denormals: their scale underflows
    codes, scale = quantiser(x)
    assert torch.equal(scale, torch.zeros(4))
    assert torch.equal(codes.float() * scale[:, None], torch.zeros(4, 6))


@pytest.mark.parametrize("quantiser", QUANTISERS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_vector_that_is_not_finite_scores_nan_and_spoils_no_other(quantiser, bad):
    x = torch.randn(3, 2, 8)
    clean = quantiser(x)
    x[1, 0, 5] = bad
    codes, scale = quantiser(x)
    assert scale[1, 0].isnan() and not codes[1, 0].float().any()
    others = torch.ones(3, 2, dtype=torch.bool)
    others[1, 0] = False
    assert torch.equal(codes.float()[others], clean[0].float()[others])
    assert torch.equal(scale[others], clean[1][others])


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_an_outlier_costs_only_its_own_vector(quantiser):
    x = torch.randn(2, 4, 8)
    clean = quantiser(x)
    x[0, 1, 0] = 1e3
    codes, scale = quantiser(x)
    assert scale[0, 1] == torch.tensor(1e3) / (127 if codes.dtype == torch.int8 else 448)
    assert torch.equal(scale[1], clean[1][1]) and torch.equal(scale[0, [0, 2, 3]], clean[1][0, [0, 2, 3]])


def test_near_the_largest_float_nothing_overflows():
    x = torch.tensor([3.4e38, -3.4e38, 1e37])
    for format in score.SCALED:
        back = score.dequantise(format, *score.quantise(format, x))
        assert back.isfinite().all()
        assert ((back - x).abs() <= x.abs().amax() / 16).all()


def test_unscaled_formats_round_once_and_keep_what_is_not_finite():
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, torch.inf, torch.nan, 70000.0])
    data, scale = score.quantise("score_bf16", x)
    assert scale is None and data[:3].tolist() == [1.0, 1 + 2.0**-6, torch.inf] and data[3].isnan()
    assert score.quantise("score_fp16", x)[0][4] == torch.inf
    assert score.quantise("score_fp32", x)[0][4] == 70000.0


@pytest.mark.parametrize("format", score.FORMATS)
def test_a_kept_vector_is_kept_again_unchanged(format):
    once = score.dequantise(format, *score.quantise(format, torch.randn(200, 8)))
    twice = score.dequantise(format, *score.quantise(format, once))
    # The scale of what was kept may be one unit in the last place off the first.
    torch.testing.assert_close(twice, once, rtol=3e-7, atol=0.0)


# --- reduce


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 63, 64, 65, 200])
def test_a_row_is_reduced_to_the_same_bits_in_any_batch(rows):
    x, basis, mean = torch.randn(200, 3, 2, 24), torch.randn(3, 24, 7), torch.zeros(3, 24)
    # Products that cancel: what is left shows in which order fp64 added them.
    x[..., 12:], basis[:, 12:] = x[..., :12], -basis[:, :12]
    whole = score.reduce(x, None, basis, mean)
    assert torch.equal(score.reduce(x[200 - rows :], None, basis, mean), whole[200 - rows :])


def test_reducing_is_the_product_rounded_once():
    x, basis, mean = torch.randn(90, 3, 2, 24), torch.randn(3, 24, 7), torch.randn(3, 24)
    want = torch.einsum("ngjd,gdc->ngjc", x.double() - mean[:, None].double(), basis.double())
    got = score.reduce(x, None, basis, mean)
    # Half a unit in the last place of fp32, and the fp64 difference of two orders of adding.
    assert ((got.double() - want).abs() <= want.abs() * 2.0**-24 + 1e-14).all()


def test_kept_dimensions_are_taken_as_they_are():
    x = torch.randn(5, 3, 2, 8).bfloat16()
    assert torch.equal(score.reduce(x, torch.tensor([6, 1]), None, None), x[..., [6, 1]].float())
    mean = torch.randn(3, 8)
    assert torch.equal(score.reduce(x, torch.tensor([6]), None, mean), x[..., [6]].float() - mean[:, None, [6]])


def test_a_projection_that_does_not_fit_is_named():
    keep = Projection("prefix", torch.arange(4), None, None, 8)
    score.require_projection(keep, 2, 8, 4)
    basis = torch.zeros(2, 8, 4)
    for projection, sizes, match in (
        (keep, (2, 16, 4), r"projection\.width is 8; the data has D = 16"),
        (keep, (2, 8, 5), r"projection\.dims is torch\.int64 \(4,\); allowed: torch\.int64 \(5,\)"),
        (keep, (2, 8, 9), r"d_score is 9"),
        (keep, (2, 8, 0), r"d_score is 0"),
        (Projection("none", None, None, None, 8), (2, 8, 4), "neither dims nor basis"),
        (Projection("two", keep.dims, basis, None, 8), (2, 8, 4), "both dims and basis"),
        (Projection("pca", None, basis, None, 8), (3, 8, 4), r"projection\.basis is torch\.float32 \(2, 8, 4\)"),
        (Projection("pca", None, basis.double(), None, 8), (2, 8, 4), r"projection\.basis is torch\.float64"),
        (Projection("pca", None, basis, torch.zeros(8), 8), (2, 8, 4), r"projection\.mean is torch\.float32 \(8,\)"),
    ):
        with pytest.raises(ValueError, match=match):
            score.require_projection(projection, *sizes)
