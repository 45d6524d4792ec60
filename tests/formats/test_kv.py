"""Laws of the key-value cache tags."""

import pytest
import torch

from tilesieve.formats.kv import FORMATS, kv_dtype, new_kv, token_views
from tilesieve.types import KVCache


@pytest.mark.parametrize("format", FORMATS)
def test_a_new_cache_is_zero_and_is_what_its_tag_says(format):
    cache = new_kv(format, pages=5, page_size=4, heads=3, width=8, value_width=6)
    key, value = token_views(cache)
    assert key.shape == (5, 4, 3, 8) and value.shape == (5, 4, 3, 6)
    assert key.dtype == value.dtype == kv_dtype(format)
    assert not key.any() and not value.any()


@pytest.mark.parametrize("format", FORMATS)
def test_values_are_as_wide_as_keys_unless_told(format):
    assert new_kv(format, 2, 4, 1, 8).value.shape[-1] == 8


@pytest.mark.parametrize(
    ("tag", "dtype"), [("kv_bf16", torch.bfloat16), ("kv_fp16", torch.float16), ("kv_fp32", torch.float32)]
)
def test_the_tag_names_the_type_and_the_layout(tag, dtype):
    token, head = new_kv(f"{tag}.token", 2, 4, 3, 8), new_kv(f"{tag}.head", 2, 4, 3, 8)
    assert token.key.dtype == head.key.dtype == dtype
    assert token.key.shape == (2, 4, 3, 8) and head.key.shape == (2, 3, 4, 8)


@pytest.mark.parametrize("layout", ["token", "head"])
def test_views_share_the_memory_and_agree_on_places(layout):
    cache = new_kv(f"kv_fp32.{layout}", 2, 4, 3, 8)
    key, value = token_views(cache)
    key[1, 2, 0, 5] = 7.0
    value[0, 3, 2, 1] = 9.0
    assert cache.key[(1, 2, 0, 5) if layout == "token" else (1, 0, 2, 5)] == 7.0
    assert cache.value[(0, 3, 2, 1) if layout == "token" else (0, 2, 3, 1)] == 9.0
    assert cache.key.count_nonzero() == cache.value.count_nonzero() == 1


@pytest.mark.parametrize("format", FORMATS)
def test_reading_as_another_type_raises(format):
    cache = new_kv(format, 2, 4, 3, 8)
    for other in FORMATS:
        if kv_dtype(other) != kv_dtype(format):
            with pytest.raises(ValueError, match=r"cache\.key is torch"):
                token_views(KVCache(cache.key, cache.value, other))


def test_reading_as_another_layout_raises_where_shapes_tell():
    cache = new_kv("kv_fp32.token", 2, 4, 3, 8)
    wrong = KVCache(cache.key, new_kv("kv_fp32.head", 2, 4, 3, 8).value, "kv_fp32.token")
    with pytest.raises(ValueError, match="must agree but for the last dimension"):
        token_views(wrong)


def test_wrong_tags_and_shapes_raise():
    with pytest.raises(ValueError, match=r"format is 'kv_bf16'; allowed: kv_bf16\.token"):
        new_kv("kv_bf16", 1, 1, 1, 1)
    cache = new_kv("kv_fp32.token", 2, 4, 3, 8)
    with pytest.raises(ValueError, match=r"format is 'score_fp32'"):
        token_views(KVCache(cache.key, cache.value, "score_fp32"))
    with pytest.raises(ValueError, match=r"cache\.value is torch\.float32 \(4, 3, 8\)"):
        token_views(KVCache(cache.key, cache.value[0], "kv_fp32.token"))


def test_an_empty_pool_is_legal():
    key, value = token_views(new_kv("kv_bf16.head", 0, 4, 3, 8))
    assert key.shape == value.shape == (0, 4, 3, 8)
