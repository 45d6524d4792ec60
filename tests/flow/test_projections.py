"""What the four projections keep, and what their scores are worth: append, score, compare."""

import pytest
import torch

from tilesieve.formats.score import new_scores
from tilesieve.layers.projections import identity, pca, prefix, rotary_pairs
from tilesieve.ops.lowrank.op import lowrank
from tilesieve.ops.score_append.op import score_append
from tilesieve.types import Pages, Projection, Rows


def scores(q: torch.Tensor, keys: torch.Tensor, projection: Projection, format: str = "score_fp32") -> torch.Tensor:
    """fp32 [R,H,L] of rows that see all L keys of one sequence."""
    length, heads, _ = keys.shape
    columns = len(projection.dims) if projection.basis is None else projection.basis.shape[2]
    cache = new_scores(format, -(-length // 16), 16, heads, columns)
    score_append(keys, projection, cache, torch.arange(length))
    table = torch.arange(len(cache.data), dtype=torch.int32)[None]
    rows = Rows(torch.zeros(len(q), dtype=torch.int32), torch.full((len(q),), length - 1, dtype=torch.int32))
    pages = Pages(table, torch.tensor([length], dtype=torch.int32), 16, length)
    return lowrank(q, projection, cache, pages, rows, scale=1.0)


def exact(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    group = q.shape[1] // keys.shape[1]
    return torch.einsum("rhd,lhd->rhl", q.double(), keys.double().repeat_interleave(group, 1))


def recall(got: torch.Tensor, want: torch.Tensor, k: int) -> float:
    """Mean share of the k largest of `want` that are among the k largest of `got`."""
    best, picked = want.topk(k).indices, got.topk(k).indices
    return float((best[..., None] == picked[..., None, :]).any(-1).double().mean())


def anisotropic(length: int, heads: int, width: int, strong: int) -> torch.Tensor:
    """Keys whose variance lies in `strong` directions that no axis shows, around a mean far off."""
    rotation = torch.linalg.qr(torch.randn(heads, width, width))[0]
    spread = torch.full((width,), 0.05)
    spread[-strong:] = 1.0  # of the rotated axes; the prefix has no part in it
    return torch.einsum("lgd,gde->lge", torch.randn(length, heads, width) * spread, rotation) + 3 * torch.randn(width)


# --- which dimensions


def test_prefix_and_identity_keep_the_first_dimensions():
    assert prefix(8, 3).dims.tolist() == [0, 1, 2] and prefix(8, 3).width == 8
    assert identity(5).dims.tolist() == [0, 1, 2, 3, 4] and identity(5).width == 5
    for projection in (prefix(8, 3), identity(5)):
        assert projection.basis is None and projection.mean is None and projection.dims.dtype == torch.int64


def test_rotary_pairs_keep_both_halves_of_the_slowest_or_fastest():
    assert rotary_pairs(8, 4).dims.tolist() == [2, 3, 6, 7]
    assert rotary_pairs(8, 4, "fastest").dims.tolist() == [0, 1, 4, 5]
    assert rotary_pairs(8, 2, "slowest", rotary=4).dims.tolist() == [1, 3]
    assert rotary_pairs(8, 8).dims.tolist() == rotary_pairs(8, 8, "fastest").dims.tolist() == list(range(8))


@pytest.mark.parametrize("rotary", [16, 8])
def test_slowest_pairs_are_those_that_turn_least_under_rope(rotary):
    """Rotate a key by hand (half-split, theta 10000): kept slow dimensions move least, fast ones most."""
    width, half = 16, rotary // 2
    angle = 50.0 * 10000.0 ** (-2.0 * torch.arange(half) / rotary)
    key = torch.ones(width)
    turned = key.clone()
    turned[:half] = angle.cos() - angle.sin()
    turned[half:rotary] = angle.cos() + angle.sin()
    size = 10000.0 ** (-2.0 * torch.arange(half) / rotary)
    slow, fast = (rotary_pairs(width, 4, which, rotary).dims for which in ("slowest", "fastest"))
    assert size[slow[:2]].max() < size[fast[:2]].min()
    assert (turned - key)[slow].abs().max() < (turned - key)[fast].abs().max()


def test_a_pair_keeps_the_part_of_a_score_that_depends_on_distance_only():
    """Both halves kept: the score of rotated vectors is the same wherever the two stand."""
    width, half = 8, 4
    q, k = torch.randn(1, 1, width), torch.randn(1, 1, width)

    def rope(x: torch.Tensor, position: int) -> torch.Tensor:
        angle = position * 100.0 ** (-2.0 * torch.arange(half) / width)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    for projection in (rotary_pairs(width, 2), rotary_pairs(width, 4, "fastest")):
        near, far = (float(scores(rope(q, p + 7), rope(k, p), projection)) for p in (0, 40))
        assert near == pytest.approx(far, abs=1e-5)
    lone = prefix(width, 1)  # half a pair keeps nothing of the kind
    assert abs(float(scores(rope(q, 7), rope(k, 0), lone)) - float(scores(rope(q, 47), rope(k, 40), lone))) > 1e-3


@pytest.mark.parametrize("columns", [0, -1, 9, True, 2.0])
def test_a_bad_width_names_d_score(columns):
    for make in (
        lambda: prefix(8, columns),
        lambda: rotary_pairs(8, columns),
        lambda: pca(torch.randn(9, 1, 8), columns),
    ):
        with pytest.raises(ValueError, match=f"d_score is {columns}; allowed: 1 to .* = 8"):
            make()


def test_other_bad_arguments_are_named():
    with pytest.raises(ValueError, match="d_score is 3; allowed: an even number"):
        rotary_pairs(8, 3)
    with pytest.raises(ValueError, match="d_score is 6; allowed: 1 to rotary = 4"):
        rotary_pairs(8, 6, rotary=4)
    for rotary in (3, 10, 0):
        with pytest.raises(ValueError, match=f"rotary is {rotary}"):
            rotary_pairs(8, 2, rotary=rotary)
    with pytest.raises(ValueError, match="which is 'medium'; allowed: 'slowest', 'fastest'"):
        rotary_pairs(8, 2, "medium")
    for keys in (torch.zeros(0, 1, 8), torch.zeros(3, 8), torch.zeros(3, 1, 8, dtype=torch.int32)):
        with pytest.raises(ValueError, match="keys is torch"):
            pca(keys, 2)
    with pytest.raises(ValueError, match="keys holds a NaN or an infinity"):
        pca(torch.full((3, 1, 8), torch.inf), 2)


# --- principal directions


def test_pca_directions_are_orthonormal_ordered_and_signed():
    keys = anisotropic(500, 3, 16, 5)
    projection = pca(keys, 16)
    assert projection.basis.shape == (3, 16, 16) and projection.mean.shape == (3, 16) and projection.width == 16
    gram = torch.einsum("gdc,gde->gce", projection.basis, projection.basis)
    torch.testing.assert_close(gram, torch.eye(16).expand(3, -1, -1), atol=1e-6, rtol=0)
    reduced = torch.einsum("ngd,gdc->ngc", keys - projection.mean, projection.basis)
    variance = reduced.var(0)
    assert (variance[:, :-1] >= variance[:, 1:] * (1 - 1e-4)).all()
    largest = projection.basis.gather(1, projection.basis.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_pca_agrees_with_the_singular_value_decomposition():
    keys = anisotropic(300, 2, 12, 4)
    projection = pca(keys, 4)
    for g in range(2):
        x = keys[:, g].double()
        _, _, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        overlap = (v[:4] @ projection.basis[g].double()).abs()
        assert torch.allclose(overlap, torch.eye(4, dtype=torch.float64), atol=1e-5)


def test_pca_is_the_same_each_time_and_by_any_layout():
    keys = anisotropic(200, 2, 16, 4)
    first = pca(keys, 4)
    for again in (pca(keys, 4), pca(keys.transpose(0, 1).contiguous().transpose(0, 1), 4)):
        assert torch.equal(again.basis, first.basis) and torch.equal(again.mean, first.mean)


def test_pca_of_mirrored_keys_is_the_same_basis():
    """-x has the directions of x; a sign that followed the solver could flip."""
    keys = anisotropic(200, 2, 16, 4)
    torch.testing.assert_close(pca(-keys, 4).basis, pca(keys, 4).basis, atol=1e-5, rtol=0)


@pytest.mark.parametrize("centred", [True, False])
def test_as_many_columns_as_the_keys_have_rank_lose_nothing(centred):
    rank, width = 5, 24
    keys = torch.einsum("lgr,grd->lgd", torch.randn(90, 2, rank), torch.randn(2, rank, width))
    keys = keys + 4 * torch.randn(2, width) if centred else keys
    q = torch.randn(3, 4, width)
    want = exact(q, keys)
    got = scores(q, keys, pca(keys, rank, centred)).double()
    # Centred, a score moves by q . mean, the same for all keys of a row and head.
    difference = got - want
    moved = difference.mean(-1, keepdim=True) if centred else torch.zeros(())
    assert (difference - moved).abs().max() <= 3e-6 * want.abs().max()
    less = scores(q, keys, pca(keys, rank - 1, centred)).double() - want
    assert (less - less.mean(-1, keepdim=True)).abs().max() > 1e-3 * want.abs().max()


def test_the_mean_moves_all_scores_of_a_row_alike():
    keys, q = anisotropic(150, 2, 16, 4), torch.randn(5, 4, 16)
    with_mean = pca(keys, 6)
    without = Projection("pca", None, with_mean.basis, None, 16)
    a, b = scores(q, keys, with_mean).double(), scores(q, keys, without).double()
    shift = b - a
    assert (shift - shift.mean(-1, keepdim=True)).abs().max() <= 1e-5 * b.abs().max()
    assert shift.mean(-1).abs().min() > 1e-3  # the mean was far off
    # Neither the softmax nor the order changes.
    torch.testing.assert_close(a.softmax(-1), b.softmax(-1), atol=1e-4, rtol=0)
    assert torch.equal(a.topk(10).indices.sort().values, b.topk(10).indices.sort().values)


def test_later_keys_are_centred_by_the_mean_of_the_first():
    prompt, later = anisotropic(100, 1, 8, 3), torch.randn(4, 1, 8) * 5
    projection = pca(prompt, 8)
    cache = new_scores("score_fp32", 1, 4, 1, 8)
    score_append(later, projection, cache, torch.arange(4))
    want = torch.einsum("lgd,gdc->lgc", (later - projection.mean).double(), projection.basis.double()).float()
    torch.testing.assert_close(cache.data[0], want, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("format", ["score_fp32", "score_bf16", "score_int8", "score_fp8"])
def test_pca_recalls_more_than_a_prefix_of_the_same_width(format):
    keys, q = anisotropic(600, 2, 32, 6), torch.randn(8, 6, 32)
    want = exact(q, keys)
    by_pca = recall(scores(q, keys, pca(keys, 6), format), want, 30)
    by_prefix = recall(scores(q, keys, prefix(32, 6), format), want, 30)
    assert by_pca > 0.7 and by_pca > by_prefix + 0.2


def test_centring_helps_when_the_mean_would_take_a_direction():
    """One column: uncentred, it points at the mean, which ranks nothing."""
    keys = torch.randn(400, 1, 16) * 0.05
    keys[..., 3] += torch.randn(400, 1)
    keys[..., 9] += 20.0
    q = torch.randn(6, 1, 16)
    want = exact(q, keys)
    assert (
        recall(scores(q, keys, pca(keys, 1)), want, 20) > recall(scores(q, keys, pca(keys, 1, False)), want, 20) + 0.3
    )


@pytest.mark.parametrize("make", [identity, lambda d: prefix(d, d), lambda d: rotary_pairs(d, d)])
def test_with_every_dimension_scores_are_exact(make):
    keys, q = torch.randn(40, 2, 16), torch.randn(3, 4, 16)
    want = exact(q, keys)
    assert (scores(q, keys, make(16)).double() - want).abs().max() <= 1e-6 * want.abs().max()


def test_fewer_keys_than_columns_still_give_a_basis():
    keys = torch.randn(2, 1, 8)
    projection = pca(keys, 5)
    assert projection.basis.shape == (1, 8, 5) and projection.basis.isfinite().all()
    one = pca(keys[:1], 3)
    assert one.basis.isfinite().all() and torch.equal(one.mean, keys[0])


def test_a_projection_is_made_on_the_device_that_is_named():
    for projection in (identity(4, device="meta"), prefix(4, 2, device="meta"), rotary_pairs(4, 2, device="meta")):
        assert projection.dims.device.type == "meta"
