"""The step's rows are what an observer sees when the operators run one decode step of one layer."""

from dataclasses import replace

import pytest
import torch

import tilesieve
from tilesieve.formats.kv import new_kv
from tilesieve.formats.score import new_scores
from tilesieve.ledger import Ledger
from tilesieve.ledger.models import Model
from tilesieve.ledger.step import Step, attention
from tilesieve.types import KVCache, Pages, Projection, Rows, Slots

TOY = Model("toy", 1, 64, 4, 2, 16, 96, 100, tied=True)
# A page a position: then the pages behind a selection are as many as its picks.
STEP = Step(context=40, batch=3, k=8, d_score=6, page_size=1)


def inputs(step):
    """Full caches and the new token's tensors, as keywords of `decode`."""
    batch, n, heads, groups, width = step.batch, step.context, TOY.heads, TOY.kv_heads, TOY.head_dim
    pool = batch * step.pages
    kv = new_kv(f"{step.cache}.token", pool, step.page_size, groups, width)
    kv.key.copy_(torch.randn(kv.key.shape))
    kv.value.copy_(torch.randn(kv.value.shape))
    projection = Projection("prefix", torch.arange(step.d_score), None, None, width)
    if step.basis:
        basis, mean = torch.randn(groups, width, step.d_score), torch.randn(groups, width)
        projection = Projection("pca", None, basis, mean, width)
    reduced = new_scores(step.score_format, pool, step.page_size, groups, step.d_score)
    everything = torch.randn(pool * step.page_size, groups, width).bfloat16()
    tilesieve.score_append(everything, projection, reduced, torch.arange(len(everything)))
    table = torch.arange(pool, dtype=torch.int32).view(batch, -1)
    return {
        "q": torch.randn(batch, heads, width).bfloat16(), "k": torch.randn(batch, groups, width).bfloat16(),
        "v": torch.randn(batch, groups, width).bfloat16(), "angle": torch.rand(batch, width // 2), "kv": kv,
        "projection": projection, "reduced": reduced,
        "pages": Pages(table, torch.full((batch,), n, dtype=torch.int32), step.page_size, n),
        "rows": Rows(torch.arange(batch, dtype=torch.int32), torch.full((batch,), n - 1, dtype=torch.int32)),
        "slot": torch.arange(batch) * step.pages * step.page_size + n - 1,
    }  # fmt: skip


def decode(step, *, q, k, v, angle, kv, projection, reduced, pages, rows, slot):
    tilesieve.kv_append(k, v, kv, slot, cos=angle.cos(), sin=angle.sin(), rope="half")
    if step.k is None:
        part = tilesieve.gqa_decode(q, kv, pages, rows)
    else:
        tilesieve.score_append(k, projection, reduced, slot)
        scores = tilesieve.lowrank(q, projection, reduced, pages, rows)
        picked = tilesieve.topk(scores, k=step.k, end=rows.position + 1, share=step.share, groups=TOY.kv_heads,
                                space="position")  # fmt: skip
        places = tilesieve.slots(picked, pages, rows)
        if step.packed:
            kv = KVCache(*tilesieve.gather(kv, places), f"{step.cache}.head")
            count = places.count if places.count.dim() == 1 else places.count[:, 0]
            places = Slots(torch.arange(step.batch * step.k).view(step.batch, step.k), count)
        part = tilesieve.sparse_gqa(q, kv, places)
    tilesieve.merge([part], dtype=q.dtype)


def observed(step):
    given, ledger = inputs(step), Ledger()
    with tilesieve.observe(ledger):
        decode(step, **given)
    assert {row.calls for row in ledger.rows()} == {1}
    return {row.op: row.cost for row in ledger.rows()}


def written(step):
    return {row.op: row.cost for row in attention(TOY, step)}


@pytest.mark.parametrize("changes", [{}, {"cache": "kv_fp32"}, {"context": 37, "page_size": 4}, {"batch": 1}])
def test_dense(changes):
    step = replace(STEP, k=None, **changes)
    assert observed(step) == written(step)


@pytest.mark.parametrize(
    "changes",
    [{}, {"cache": "kv_fp16"}, {"batch": 1}, {"basis": True}, {"score_format": "score_fp32"}, {"k": 40}, {"k": 50},
     {"score_format": "score_fp8", "basis": True}, {"context": 37, "page_size": 4, "k": 37}],
)  # fmt: skip
def test_sparse_with_one_selection_a_layer(changes):
    step = replace(STEP, **changes)
    assert observed(step) == written(step)


@pytest.mark.parametrize("share", ["kv_head", "q_head"])
def test_sets_that_may_coincide_cost_at_most_what_is_written(share):
    step = replace(STEP, share=share)
    seen, said = observed(step), written(step)
    assert seen.keys() == said.keys()
    for op, cost in seen.items():
        assert cost.flops == said[op].flops
        overlap = op == "slots" or (op == "sparse_gqa" and share == "q_head")
        assert cost.bytes_min <= said[op].bytes_min if overlap else cost == said[op], op


def test_of_scattered_picks_pages_are_the_most_there_can_be():
    step = replace(STEP, page_size=4)
    seen, said = observed(step), written(step)
    assert seen["slots"].bytes_min <= said["slots"].bytes_min
    assert {op for op in said if seen[op] != said[op]} <= {"slots"}


@pytest.mark.parametrize("changes", [{}, {"share": "kv_head"}, {"k": 50}, {"cache": "kv_fp32", "batch": 1}])
def test_packed(changes):
    step = replace(STEP, packed=True, **changes)
    seen, said = observed(step), written(step)
    assert seen.keys() == said.keys()
    for op in seen.keys() - {"slots"}:  # of several sets the pages may coincide
        # Sectors at the ends of copies depend on which positions lie side by side.
        known = [replace(cost, bytes_padded=0) for cost in (seen[op], said[op])]
        assert known[0] == known[1], op
