"""Laws of score_append that the contract does not state for every operator."""

import pytest
import torch

from tilesieve.formats import score
from tilesieve.ops import run
from tilesieve.ops.score_append.op import score_append
from tilesieve.types import Projection, ScoreCache

IMPLS = ("reference", "cpu")
impls = pytest.mark.parametrize("impl", IMPLS)
formats = pytest.mark.parametrize("format", score.FORMATS)


def keep(width: int, dims: list[int], mean: torch.Tensor | None = None) -> Projection:
    return Projection("kept", torch.tensor(dims), None, mean, width)


def bits(cache: ScoreCache) -> list[torch.Tensor]:
    return [t.view(torch.uint8) for t in (cache.data, cache.scale) if t is not None]


@impls
@formats
def test_each_key_lands_in_its_slot_and_nothing_else_changes(format, impl):
    cache = score.new_scores(format, pages=3, page_size=4, heads=2, width=3)
    k = torch.randn(3, 2, 5) + 2
    score_append(k, keep(5, [0, 3, 4]), cache, torch.tensor([9, 0, 7]), impl=impl)
    want = torch.zeros(12, 2, 3)
    want[[9, 0, 7]] = score.dequantise(format, *score.quantise(format, k[..., [0, 3, 4]]))
    assert torch.equal(score.dequantise(format, cache.data, cache.scale).view(12, 2, 3), want)


@impls
def test_a_basis_and_a_mean_by_hand(impl):
    cache = score.new_scores("score_fp32", 1, 1, 2, 1)
    basis = torch.tensor([[[1.0], [2.0]], [[0.0], [-1.0]]])
    mean = torch.tensor([[1.0, 1.0], [0.0, 10.0]])
    k = torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    score_append(k, Projection("pca", None, basis, mean, 2), cache, torch.tensor([0]), impl=impl)
    assert cache.data.flatten().tolist() == [(3 - 1) + 2 * (4 - 1), -(6 - 10)]


@impls
@formats
def test_step_by_step_is_all_at_once(format, impl):
    basis = torch.randn(2, 16, 6)
    projection = Projection("pca", None, basis, torch.randn(2, 16), 16)
    k, slot = torch.randn(70, 2, 16), torch.randperm(80)[:70]
    once, stepped = (score.new_scores(format, 20, 4, 2, 6) for _ in range(2))
    score_append(k, projection, once, slot, impl=impl)
    for first, last in ((0, 1), (1, 2), (2, 5), (5, 69), (69, 70)):
        score_append(k[first:last], projection, stepped, slot[first:last], impl=impl)
    assert all(torch.equal(a, b) for a, b in zip(bits(once), bits(stepped), strict=True))


@impls
@formats
def test_of_two_rows_with_one_slot_the_later_stays(format, impl):
    projection = keep(4, [0, 1])
    k = torch.randn(50, 1, 4)
    twice, last = (score.new_scores(format, 1, 2, 1, 2) for _ in range(2))
    slot = torch.tensor([1, 0] * 25)
    score_append(k, projection, twice, slot, impl=impl)
    score_append(k[-2:], projection, last, slot[-2:], impl=impl)
    assert all(torch.equal(a, b) for a, b in zip(bits(twice), bits(last), strict=True))
    with run.checked(), pytest.raises(ValueError, match="slot names the same place twice"):
        score_append(k, projection, twice, slot, impl=impl)


@impls
@pytest.mark.parametrize("slots", [torch.int32, torch.int64])
def test_slots_outside_the_pool_are_skipped(slots, impl):
    cache = score.new_scores("score_int8", 2, 4, 1, 2)
    slot = torch.tensor([-1, 8, -9, 2**31 - 1], dtype=slots)
    score_append(torch.full((4, 1, 4), torch.nan), keep(4, [0, 1]), cache, slot, impl=impl)
    assert not any(b.any() for b in bits(cache))
    with run.checked(), pytest.raises(ValueError, match="slot names 2147483647; the cache has 8 slots"):
        score_append(torch.zeros(4, 1, 4), keep(4, [0, 1]), cache, slot, impl=impl)


@impls
@pytest.mark.parametrize("format", score.SCALED)
def test_a_key_that_is_not_finite_spoils_only_itself(format, impl):
    k = torch.randn(3, 2, 4)
    k[1, 0, 1] = torch.nan
    k[2, 1, 3] = torch.inf  # a dimension that is not kept
    cache = score.new_scores(format, 1, 3, 2, 2)
    score_append(k, keep(4, [0, 1]), cache, torch.arange(3), impl=impl)
    assert cache.scale.isnan().nonzero().tolist() == [[0, 1, 0]]
    assert cache.data.float().isfinite().all()
    with run.checked(), pytest.raises(ValueError, match="k holds a NaN or an infinity"):
        score_append(k, keep(4, [0, 1]), cache, torch.arange(3), impl=impl)


@impls
def test_keys_beside_a_padded_row_keep_their_bits(impl):
    """Three real rows and one NaN row that is skipped: the real rows are those of a batch of three."""
    projection = Projection("pca", None, torch.randn(1, 8, 4), torch.randn(1, 8), 8)
    k = torch.randn(4, 1, 8)
    k[3] = torch.nan
    three, four = (score.new_scores("score_fp8", 1, 4, 1, 4) for _ in range(2))
    score_append(k[:3], projection, three, torch.arange(3), impl=impl)
    score_append(k, projection, four, torch.tensor([0, 1, 2, -1]), impl=impl)
    assert all(torch.equal(a, b) for a, b in zip(bits(three), bits(four), strict=True))


def test_bf16_keys_are_reduced_unrounded():
    """A bf16 key and the same numbers in fp32 give one cache."""
    projection = Projection("pca", None, torch.randn(2, 16, 4), None, 16)
    k = torch.randn(9, 2, 16).bfloat16()
    a, b = (score.new_scores("score_fp32", 3, 3, 2, 4) for _ in range(2))
    score_append(k, projection, a, torch.arange(9))
    score_append(k.float(), projection, b, torch.arange(9))
    assert torch.equal(a.data, b.data)


def test_wrong_arguments_are_named():
    cache = score.new_scores("score_int8", 2, 4, 2, 3)
    k, slot, projection = torch.zeros(5, 2, 8), torch.arange(5), keep(8, [0, 1, 2])
    for change, match in (
        ({"k": k[0]}, r"k has shape \(2, 8\)"),
        ({"k": k.double()}, r"k is torch\.float64"),
        ({"k": k[:, :1]}, r"cache\.data has shape"),
        ({"slot": slot[:4]}, r"slot has shape \(4,\)"),
        ({"slot": slot.float()}, r"slot is torch\.float32"),
        ({"projection": keep(8, [0, 1])}, r"projection\.dims .* d_score = 3"),
        ({"projection": keep(16, [0, 1, 2])}, r"projection\.width is 16"),
        ({"cache": ScoreCache(cache.data, cache.scale, "score_fp8")}, r"cache\.data is torch\.int8"),
        ({"cache": score.new_scores("score_fp32", 2, 4, 2, 9), "projection": keep(8, list(range(8)))}, "d_score is 9"),
    ):
        given = {"k": k, "projection": projection, "cache": cache, "slot": slot, **change}
        with pytest.raises(ValueError, match=match):
            score_append(**given)
    with run.checked(), pytest.raises(ValueError, match=r"projection\.dims is \[0, 1, 8\]"):
        score_append(k, keep(8, [0, 1, 8]), cache, slot)
