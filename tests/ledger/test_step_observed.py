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
from tilesieve.types import Pages, Projection, Rows

TOY = Model("toy", 1, 64, 4, 2, 16, 96, 100, tied=True)
# A page a position: then the pages behind a selection are as many as its picks.
STEP = Step(context=40, batch=3, k=8, d_score=6, page_size=1)


def observed(step):
    """One decode step of `step` on random tensors, all caches full, as a dict of costs by operator."""
    batch, n, heads, groups, width = step.batch, step.context, TOY.heads, TOY.kv_heads, TOY.head_dim
    pool = batch * step.pages
    table = torch.arange(pool, dtype=torch.int32).view(batch, -1)
    pages = Pages(table, torch.full((batch,), n, dtype=torch.int32), step.page_size, n)
    rows = Rows(torch.arange(batch, dtype=torch.int32), torch.full((batch,), n - 1, dtype=torch.int32))
    q = torch.randn(batch, heads, width).bfloat16()
    k, v = (torch.randn(batch, groups, width).bfloat16() for _ in range(2))
    angle = torch.rand(batch, width // 2)
    kv = new_kv(f"{step.cache}.token", pool, step.page_size, groups, width)
    kv.key.copy_(torch.randn(kv.key.shape))
    kv.value.copy_(torch.randn(kv.value.shape))
    slot = torch.arange(batch) * step.pages * step.page_size + n - 1

    ledger = Ledger()
    with tilesieve.observe(ledger):
        tilesieve.kv_append(k, v, kv, slot, cos=angle.cos(), sin=angle.sin(), rope="half")
        if step.k is None:
            parts = [tilesieve.gqa_decode(q, kv, pages, rows)]
        else:
            parts = [sparse(step, q, k, slot, kv, pages, rows)]
        tilesieve.merge(parts, dtype=q.dtype)
    assert {row.calls for row in ledger.rows()} == {1}
    return {row.op: row.cost for row in ledger.rows()}


def sparse(step, q, k, slot, kv, pages, rows):
    groups, width, columns = TOY.kv_heads, TOY.head_dim, step.d_score
    projection = Projection("prefix", torch.arange(columns), None, None, columns)
    if step.basis:
        basis = torch.randn(groups, width, columns)
        projection = Projection("pca", None, basis, torch.randn(groups, width), columns)
    reduced = new_scores(step.score_format, len(kv.key), step.page_size, groups, columns)
    every = torch.arange(len(kv.key) * step.page_size)
    tilesieve.score_append(torch.randn(len(every), groups, width).bfloat16(), projection, reduced, every)
    ledger_free = tilesieve.ops  # the line above fills the cache and is no part of the step
    raise NotImplementedError(ledger_free)


@pytest.mark.parametrize("changes", [{}, {"cache": "kv_fp32"}, {"context": 37, "page_size": 4}, {"batch": 1}])
def test_dense(changes):
    step = replace(STEP, k=None, **changes)
    assert observed(step) == {row.op: row.cost for row in attention(TOY, step)}
