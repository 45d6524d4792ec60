"""The section on moving selected rows: runs and bytes by hand, what is timed, and the whole of it on a tiny model."""

import pytest
import torch

from tilesieve.hf.load import Checkpoint
from tilesieve.hf.shape import Shape
from tilesieve.ops.sparse_gqa.op import sparse_gqa
from tilesieve.study import gather as module
from tilesieve.study.bench import Bench
from tilesieve.study.gather import PAGE, common, contexts, gather, interleaved, pool_of, runs_by_layer, slots_of, timed
from tilesieve.study.plan import Plan
from tilesieve.study.run import encode
from tilesieve.study.store import Store
from tilesieve.study.texts import read_text
from tilesieve.study.trace import SHARED, Trace, write_trace

SHAPE = Shape("any", 2, 4, 2, 8, None)
T = 256


def some(*positions):
    return torch.tensor(positions, dtype=torch.int32)


def window(q, k=4):
    return torch.arange(q - k + 1, q + 1, dtype=torch.int32)


@pytest.fixture
def trace():
    """Layer 0 picks a window of 4, layer 1 every other position: 1 run and 4."""
    queries = [*range(63, T, 4), *range(T - 20, T)]
    return Trace(T, {(0, SHARED): {q: window(q) for q in queries},
                     (1, SHARED): {q: some(q - 6, q - 4, q - 2, q) for q in queries}})  # fmt: skip


def test_runs_by_layer(trace):
    assert runs_by_layer(trace) == [1.0, 4.0]
    assert runs_by_layer(Trace(8, {(0, 1): {5: some(1, 2, 5)}, (0, 3): {5: some(1, 3, 5)}})) == [2.5]
    assert runs_by_layer(Trace(8, {(0, SHARED): {2: some(), 5: some(1)}})) == [0.5]


def test_each_layer_is_a_sequence_of_its_own():
    slots = slots_of([some(0, 99), some(3)], 100)
    assert slots.slot.tolist() == [[0, 99], [2 * PAGE + 3, -1]] and slots.count.tolist() == [2, 1]


def test_packed_is_fused(monkeypatch):
    """What is timed computes the same attention, whatever the layout."""
    monkeypatch.setattr(module, "sparse_gqa", lambda *a: outs.append(sparse_gqa(*a).out))
    q, slots = torch.randn(2, 4, 8), slots_of([some(5, 7, 90), some(1, 2)], 100)
    for layout in ("token", "head"):
        outs = []
        pool = pool_of(layout, SHAPE, 2, 100)
        for run in (module.packed, module.fused):
            run(q, pool, slots)
        assert torch.allclose(*outs, atol=1e-6) and outs[0].abs().max() > 0
        assert pool.key.std() > 0.9


def test_layouts_by_hand(trace):
    rows = timed(trace, SHAPE)
    assert len(rows) == 8 == len({(r["layout"], r["order"], r["way"]) for r in rows})
    found = {(r["layout"], r["order"], r["way"]): r for r in rows}
    assert found["token", "sorted", "packed"]["runs"] == (1 + 4) / 2
    # The last 8 queries end at 255: no window of theirs crosses the border of a page, 192.
    assert found["head", "sorted", "fused"]["runs"] == (1 + 4) / 2
    assert found["token", "unsorted", "fused"]["runs"] > (1 + 4) / 2
    # Per row and layer: 4 picks of 2 heads of 8 + 8 numbers, read once; q and out of 4 heads, lse, slots, count.
    picked, around = 4 * 2 * 16 * 4, 4 * 8 * 4 * 2 + 4 * 4 + 4 * 8 + 4
    assert found["head", "sorted", "fused"]["bytes"] == picked + around
    # Packed: read, written, read again, and the list is read by both.
    assert found["token", "unsorted", "packed"]["bytes"] == 3 * picked + around + 4 * 8 + 4
    assert all(r["seconds"] > 0 for r in rows)


def test_pages_end_runs_of_a_head_major_cache():
    trace = Trace(T, {(0, SHARED): {q: window(q) for q in range(192, 195)}})
    found = {(r["layout"], r["order"]): r["runs"] for r in timed(trace, SHAPE)}
    assert found["token", "sorted"] == 1.0 and found["head", "sorted"] == 2.0


def test_unsorted_is_one_order_of_the_same_rows():
    row = torch.arange(50)
    assert torch.equal(module.shuffled(row), module.shuffled(row))
    assert torch.equal(module.shuffled(row).sort().values, row) and not torch.equal(module.shuffled(row), row)


def test_jobs_take_turns():
    calls = []
    jobs = [[lambda n=n, s=s: calls.append((n, s)) for s in range(3)] for n in range(2)]
    seconds = interleaved(jobs, 2)
    assert calls[:2] == [(0, 0), (1, 0)]  # warm up
    assert calls[2:6] == [(0, 0), (1, 1), (0, 1), (1, 2)] and len(calls) == 2 + 2 * 6
    assert len(seconds) == 2 and all(s > 0 for s in seconds)
    calls.clear()
    interleaved(jobs, 100, limit=0.0)
    assert len(calls) == 4


def test_contexts_have_k_picks_each(trace):
    found = contexts(trace, SHAPE, 4)
    assert [row["context"] for row in found] == [T // 4, T // 2, T]
    assert all(row["runs"] == 2.5 and row["seconds"] > 0 for row in found)
    # A query at 63 sees no 100 positions.
    assert [row["context"] for row in contexts(trace, SHAPE, 100)] == [T // 2, T]


def test_a_large_model_times_some_of_its_layers(trace, monkeypatch):
    trace.picks |= {(n, SHARED): trace.picks[0, SHARED] for n in range(2, 10)}
    monkeypatch.setattr(module, "BYTES", 5 * 2 * 4 * T * 2 * 8)
    assert module.some_layers(trace, SHAPE) == [(n, SHARED) for n in (0, 2, 4, 6, 8)]
    assert len(common(trace)) == len(trace.picks[0, SHARED])


@pytest.fixture
def bench(model_folder, text_file):
    plan = Plan(model_folder, text_file, tokens=200, steps=2, budgets=(8,), budget=8, scoring="pca")
    checkpoint = Checkpoint.open(model_folder)
    ids = encode(checkpoint.tokenizer, read_text(text_file), plan, text_file)
    return Bench(plan, checkpoint, ids, lambda what, share: None)


def test_the_section(bench, tmp_path):
    store = Store(tmp_path, {"a": 1})
    draw = torch.Generator().manual_seed(0)
    picks = {(n, SHARED): {q: torch.randperm(q + 1, generator=draw)[:8].sort().values.int()
                           for q in range(8, 200)} for n in range(3)}  # fmt: skip
    write_trace(Trace(200, picks), tmp_path / "trace-exact-8.jsonl")
    threads = torch.get_num_threads()
    found = gather(bench, store)
    assert torch.get_num_threads() == threads
    assert (found["k"], found["context"], found["rows"], found["layer_count"]) == (8, 200, 8, 3)
    assert [row["size"] for row in found["hot"]] == [8, 12, 16, 32] and len(found["runs_by_layer"]) == 3
    hit = [row["hit"] for row in found["hot"]]
    assert hit == sorted(hit) and 0 < hit[0] < 0.2  # random picks of about 150: 8 of them are there by chance
    runs = {(r["layout"], r["order"]): r["runs"] for r in found["layouts"]}
    assert (
        runs["token", "sorted"] <= runs["head", "sorted"] and runs["token", "sorted"] < runs["token", "unsorted"] <= 8
    )
    assert [row["context"] for row in found["by_context"]] == [50, 100, 200]
    # Resumed: nothing is run, no model is loaded, the trace is not even read.
    (tmp_path / "trace-exact-8.jsonl").unlink()
    assert gather(bench, Store(tmp_path, {"a": 1})) == found
    assert bench._model is None


def test_a_trace_that_is_gone(bench, tmp_path):
    with pytest.raises(ValueError, match=r"out is .*trace-exact-8.jsonl.*missing; run it again with --fresh"):
        gather(bench, Store(tmp_path, {"a": 1}))
