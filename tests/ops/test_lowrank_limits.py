"""What lowrank costs, how far it goes and what it refuses."""

import math

import pytest
import torch
from lowrank_inputs import at, keep, paged
from torch.utils._python_dispatch import TorchDispatchMode

from tilesieve.ops import catalogue, run
from tilesieve.ops.lowrank.op import lowrank
from tilesieve.types import Pages, Rows, ScoreCache

impls = pytest.mark.parametrize("impl", ["reference", "cpu"])


def run_sizes(*args, **more) -> dict[str, int]:
    calls: list[run.Call] = []
    with run.observe(calls.append):
        lowrank(*args, **more)
    return calls[0].sizes()


@impls
def test_one_page_may_serve_two_sequences(impl):
    keys = torch.randn(1, 8, 1, 4)
    cache, pages = paged(keys, "score_fp32", spare=0)
    shared = Pages(pages.table.repeat(2, 1), pages.length.repeat(2), 4, 8)
    q, rows = torch.ones(2, 1, 4), at([0, 1], [7, 3])
    got = lowrank(q, keep(4), cache, shared, rows, impl=impl)
    assert torch.equal(got[0, :, :4], got[1, :, :4])
    # 8 distinct keys, though 12 (row, position) pairs are scored
    sizes = run_sizes(q, keep(4), cache, shared, rows)
    assert (sizes["scanned"], sizes["keys"], sizes["entries"], sizes["sequences"]) == (12, 8, 3, 2)


@impls
def test_pages_past_two_to_the_31_slots(impl):
    """A pool of 2^27 pages of 64, by a stride of 0: in 32 bits the first two pages are one place."""
    keys = torch.randn(1, 64, 1, 4)
    pool = ScoreCache(keys.expand(2**27, 64, 1, 4), None, "score_fp32")
    table = torch.tensor([[2**26 + 3, 3, 2**27]], dtype=torch.int32)  # the third is past the pool
    pages = Pages(table, torch.tensor([190], dtype=torch.int32), 64, 190)
    q, rows = torch.randn(1, 1, 4), at([0], [189])
    got = lowrank(q, keep(4), pool, pages, rows, scale=1.0, impl=impl)[0, 0]
    assert torch.equal(got[:64], got[64:128]) and got[:128].isfinite().all() and (got[128:] == -math.inf).all()
    assert run_sizes(q, keep(4), pool, pages, rows)["keys"] == 128


class Largest(TorchDispatchMode):
    """The bytes of the largest memory that comes up in a block and is none of `known`."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.bytes, self.known = 0, {t.untyped_storage().data_ptr() for t in known}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.known:
                self.bytes = max(self.bytes, t.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("format", ["score_fp32", "score_int8"])
def test_memory_beyond_the_result_is_bounded(format, mixed):
    """Nothing as large as R * L, nor as the keys: the largest is a chunk of keys or one product."""
    rows, heads, length = 64, 9, 20000
    cache, pages = paged(torch.randn(2, length, 3, 16), format, page_size=16)
    seq = [r % 2 for r in range(rows)] if mixed else [0] * rows
    calls: list[run.Call] = []
    with run.observe(calls.append):
        want = lowrank(torch.randn(rows, heads, 64), keep(64, 16), cache, pages, at(seq, [length - 1] * rows))
    out = torch.empty(rows, heads, length)
    with Largest([out, *(a for a in calls[0].args if isinstance(a, torch.Tensor))]) as largest:
        run._load("lowrank", "cpu")(*calls[0].args, out=(out,))
    assert torch.equal(out, want)
    assert 0 < largest.bytes <= max(4096 * 3 * 16, 3 * 96 * 512) * 4


def test_cost_of_a_decode_step_by_hand():
    """H 32, G 8, D 128, C 32, bf16 keys, one row at 4096 of 4096."""
    cost = catalogue.cost("lowrank")(rows=1, heads=32, kv_heads=8, width=128, columns=32, length=4096, scanned=4096,
                                     keys=4096, entries=64, sequences=1, itemsize=2, cache_itemsize=2)  # fmt: skip
    assert cost.flops == 2 * 32 * 32 * 4096 + 32 * 4096
    cache, scores = 4096 * 8 * 32 * 2, 32 * 4096 * 4
    assert cost.bytes_min == cache + scores + 32 * 32 * 2 + 32 * 8 + 8 + 4 * 65


def test_wrong_arguments_are_named():
    cache, pages = paged(torch.randn(2, 6, 2, 3), "score_int8")
    given = {"q": torch.zeros(2, 4, 8), "projection": keep(8, 3), "cache": cache, "pages": pages,
             "rows": at([0, 1], [5, 5])}  # fmt: skip
    for change, match in (
        ({"q": torch.zeros(2, 3, 8)}, r"q has 3 heads; allowed: a multiple of the cache's G = 2"),
        ({"q": torch.zeros(2, 8)}, r"q has shape \(2, 8\)"),
        ({"q": torch.zeros(3, 4, 8)}, r"rows\.seq has shape \(2,\).* R = 3"),
        ({"projection": keep(8, 4)}, r"projection\.dims .* d_score = 3"),
        ({"projection": keep(9, 3)}, r"projection\.width is 9"),
        ({"cache": ScoreCache(cache.data, cache.scale, "score_fp8")}, r"cache\.data is torch\.int8"),
        ({"cache": ScoreCache(cache.data, None, "score_int8")}, r"cache\.scale is None"),
        ({"pages": Pages(pages.table, pages.length, 8, 6)}, r"pages\.page_size is 8; allowed: 4, the cache's"),
        ({"pages": Pages(pages.table, pages.length[:1], 4, 6)}, r"pages\.length has shape \(1,\)"),
        ({"pages": Pages(pages.table.long(), pages.length, 4, 6)}, r"pages\.table is torch\.int64"),
        ({"pages": Pages(pages.table, pages.length, 4, -1)}, r"pages\.max_length is -1"),
        ({"rows": Rows(given["rows"].seq, given["rows"].position.long())}, r"rows\.position is torch\.int64"),
        ({"out": torch.empty(2, 4, 5)}, r"out: scores is torch\.float32 \(2, 4, 5\)"),
    ):
        with pytest.raises(ValueError, match=match):
            lowrank(**{**given, **change})


def test_checked_looks_at_lengths_sequences_and_scales():
    cache, pages = paged(torch.randn(2, 6, 1, 3), "score_int8")
    q, projection = torch.zeros(2, 1, 3), keep(3)
    for length, rows, match in (
        ([7, 6], at([0, 1], [5, 5]), r"pages\.length is \[7, 6\]; allowed: 0 to 6"),
        ([-1, 6], at([0, 1], [5, 5]), r"pages\.length is \[-1, 6\]"),
        ([6, 6], at([0, 2], [5, 5]), r"rows\.seq is \[0, 2\]; allowed: 0 to 1"),
    ):
        wrong = Pages(pages.table, torch.tensor(length, dtype=torch.int32), 4, 6)
        with run.checked(), pytest.raises(ValueError, match=match):
            lowrank(q, projection, cache, wrong, rows)
    with run.checked():  # a padded row may name any sequence
        lowrank(q, projection, cache, pages, at([0, 99], [5, -1]))
    cache.scale[pages.table[1, 0].long(), 2] = torch.nan
    with run.checked():
        lowrank(q, projection, cache, pages, at([0, 1], [5, 1]))  # nobody reads it
        with pytest.raises(ValueError, match=r"cache\.scale holds"):
            lowrank(q, projection, cache, pages, at([0, 1], [5, 2]))
