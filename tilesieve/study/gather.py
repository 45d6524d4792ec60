"""What moving the selected rows costs on this machine: real picks, caches of the model's shape with random contents.

packed: the gather operator copies a row's keys and values into a buffer, and attention reads that. fused: attention
reads the slots where they are. One call takes what a decode step reads in all layers, each layer a sequence of its
own in one pool: a call per layer would measure what a call costs. All on one thread: threads that wait for one another
on a busy machine take a hundred times longer, and what is compared here is memory.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from tilesieve.formats.kv import new_kv
from tilesieve.hf.shape import Shape
from tilesieve.ledger.ledger import Ledger
from tilesieve.ops.gather.op import gather as gather_rows
from tilesieve.ops.gather.runs import contiguous_runs
from tilesieve.ops.run import observe
from tilesieve.ops.sparse_gqa.op import sparse_gqa
from tilesieve.study.bench import Bench
from tilesieve.study.hot import hot
from tilesieve.study.overlaps import stretch
from tilesieve.study.store import Store
from tilesieve.study.trace import SPREAD, Trace, read_trace
from tilesieve.types import KVCache, Slots

PAGE = 64
# Queries timed, and how often each; medians are taken over all of them.
ROWS = 8
REPEATS = 5
# What one set of timings may take.
SECONDS = 3.0
# Queries near each context whose gather is timed there.
NEAR = 4
SIZES = (1.0, 1.5, 2.0, 4.0)
# Bytes of the pool of one layout: of a larger model fewer layers are timed.
BYTES = 1 << 28
VARIANTS = tuple(product(("token", "head"), ("sorted", "unsorted"), ("packed", "fused")))


def gather(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "gather" of study.json, from the trace of the exact run at the plan's budget (or of the reduced one)."""
    plan, shape = bench.plan, bench.shape
    name = f"trace-{'exact' if plan.budget in plan.budgets else 'lowrank'}-{plan.budget}.jsonl"
    settings = {"trace": name, "rows": ROWS, "repeats": REPEATS, "near": NEAR}

    @cache
    def read() -> Trace:
        bench.tell("gather", 0.0)
        return trace_of(store.folder, name)

    def counts() -> dict[str, Any]:
        trace = read()
        rows = {query for picks in trace.picks.values() for query in picks}
        return {
            "k": plan.budget, "context": trace.length, "rows": min(ROWS, len(rows)),
            "layer_count": len({layer for layer, _ in trace.picks}), "threads": 1,
            "hot": hot(trace, SIZES), "runs_by_layer": runs_by_layer(trace), "layer_ids": layer_ids(trace),
        }  # fmt: skip

    def layouts() -> list[dict[str, Any]]:
        bench.tell("gather", 0.3)
        with one_thread():
            return timed(read(), shape)

    def by_context() -> list[dict[str, Any]]:
        bench.tell("gather by context", 0.8)
        with one_thread():
            return contexts(read(), shape, plan.budget)

    found: dict[str, Any] = store.part("gather", "counts", settings, counts)
    return found | {
        "layouts": store.part("gather", "layouts", settings, layouts),
        "by_context": store.part("gather", "by_context", settings, by_context),
    }


def trace_of(folder: Path, name: str) -> Trace:
    """What the sweep recorded. Raises ValueError where its file is gone."""
    path = folder / name
    if not path.is_file():
        raise ValueError(f"out is {folder}: {name}, which the sweep wrote there, is missing; run it again with --fresh")
    try:
        return read_trace(path)
    except ValueError as error:
        raise ValueError(f"{error}; the sweep wrote it, run it again with --fresh") from error


def runs_by_layer(trace: Trace) -> list[float]:
    """Contiguous runs per set, ascending, pages side by side; mean over heads and the longest stretch of queries."""
    found = []
    for layer in layer_ids(trace):
        rows: list[Tensor] = []
        for key in sorted(key for key in trace.picks if key[0] == layer):
            picks = trace.picks[key]
            queries = stretch(sorted(picks))
            rows += [picks[query] for query in (queries if len(queries) > 1 else sorted(picks))]
        found.append(mean_runs(slots_of(rows, trace.length)))
    return found


def layer_ids(trace: Trace) -> list[int]:
    """The layers that `runs_by_layer` speaks of, in its order."""
    return sorted({layer for layer, _ in trace.picks})


def mean_runs(slots: Slots, page: int | None = None) -> float:
    return float(contiguous_runs(slots, page_size=page).double().mean())


def slots_of(rows: list[Tensor], length: int) -> Slots:
    """Row n's picks as slots [R,K] of the n-th sequence of a pool, where each has pages for `length` positions."""
    slot = torch.nn.utils.rnn.pad_sequence([row.long() for row in rows], batch_first=True, padding_value=-1)
    first = torch.arange(len(rows))[:, None] * pages_of(length) * PAGE
    return Slots(torch.where(slot < 0, -1, slot + first), torch.tensor([len(row) for row in rows], dtype=torch.int32))


def pages_of(length: int) -> int:
    return -(-length // PAGE)


def pool_of(layout: str, shape: Shape, layers: int, length: int) -> KVCache:
    """Random keys and values."""
    cache = new_kv(f"kv_fp32.{layout}", layers * pages_of(length), PAGE, shape.kv_heads, shape.head_dim)
    cache.key.normal_()
    cache.value.normal_()
    return cache


def packed(q: Tensor, cache: KVCache, slots: Slots) -> None:
    """Copy, then attend to the copy: a head-major cache with a page for each row."""
    key, value = gather_rows(cache, slots)
    rows, _, picks, _ = key.shape
    sparse_gqa(q, KVCache(key, value, "kv_fp32.head"), Slots(torch.arange(rows * picks).view(rows, picks), slots.count))


def fused(q: Tensor, cache: KVCache, slots: Slots) -> None:
    sparse_gqa(q, cache, slots)


def timed(trace: Trace, shape: Shape) -> list[dict[str, Any]]:
    """A row of the section's layouts for each variant: per query row and layer."""
    keys = some_layers(trace, shape)
    steps = [[trace.picks[key][query] for key in keys] for query in common(trace)[-ROWS:]]
    q = torch.randn(len(keys), shape.heads, shape.head_dim)
    pools = {layout: pool_of(layout, shape, len(keys), trace.length) for layout in ("token", "head")}
    lists = {"sorted": [slots_of(step, trace.length) for step in steps],
             "unsorted": [slots_of([shuffled(row) for row in step], trace.length) for step in steps]}  # fmt: skip
    run: dict[str, Callable[..., None]] = {"packed": packed, "fused": fused}
    jobs = [[partial(run[way], q, pools[layout], slots) for slots in lists[order]] for layout, order, way in VARIANTS]
    found = []
    for (layout, order, way), job, seconds in zip(VARIANTS, jobs, interleaved(jobs, REPEATS), strict=True):
        # A head-major page holds one head after the other: a run ends with it.
        page = PAGE if layout == "head" else None
        found.append({
            "layout": layout, "order": order, "way": way,
            "runs": sum(mean_runs(slots, page) for slots in lists[order]) / len(steps),
            "bytes": bytes_of(job) / (len(steps) * len(keys)), "seconds": seconds / len(keys),
        })  # fmt: skip
    return found


def some_layers(trace: Trace, shape: Shape) -> list[tuple[int, int]]:
    """The sets that are timed: all layers, or evenly as many as a pool may hold."""
    keys = sorted(trace.picks)
    each = 2 * 4 * pages_of(trace.length) * PAGE * shape.kv_heads * shape.head_dim
    return keys[:: -(-len(keys) * each // BYTES)]


def common(trace: Trace) -> list[int]:
    """The queries that all layers have."""
    return sorted(set.intersection(*({*picks} for picks in trace.picks.values())))


def shuffled(row: Tensor) -> Tensor:
    """The same order for every list of one length."""
    return row[torch.randperm(len(row), generator=torch.Generator().manual_seed(0))]


# Calls by step.
Job = Sequence[Callable[[], object]]


def interleaved(jobs: Sequence[Job], repeats: int, limit: float = SECONDS, *,
                of: Callable[[list[float]], float] = median) -> list[float]:  # fmt: skip
    """Median seconds of a step of each job, or what `of` takes of them.

    Jobs take turns, so that what else the machine does falls on all alike.
    No job repeats the step of the one before it, whose rows the processor still has. Stops early after `limit`
    seconds: a busy machine gets fewer repeats, one of each job at least.
    """
    for job in jobs:
        job[0]()
    taken: list[list[float]] = [[] for _ in jobs]
    began = time.perf_counter()
    for turn in range(repeats * len(jobs[0])):
        if turn and time.perf_counter() - began > limit:
            break
        for n, job in enumerate(jobs):
            step = job[(turn + n) % len(job)]
            start = time.perf_counter()
            step()
            taken[n].append(time.perf_counter() - start)
    return [of(each) for each in taken]


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bytes_of(job: Job) -> int:
    """What the operators of all steps must move, by their own costs."""
    book = Ledger()
    with observe(book):
        for step in job:
            step()
    return book.total().bytes_min


def contexts(trace: Trace, shape: Shape, k: int) -> list[dict[str, Any]]:
    """The gather alone (token-major, ascending) at a quarter, half and all of the text, with k picks at each.

    The least of the times: they are short, and one that was disturbed would look like growth.

    Contexts at which a query sees fewer than k positions are left out: it picks fewer.
    """
    keys, queries = some_layers(trace, shape), common(trace)
    pool = pool_of("token", shape, len(keys), trace.length)
    found, jobs = [], []
    for context in (trace.length // 4, trace.length // 2, trace.length):
        near = last_apart([query for query in queries if query < context], max(1, trace.length // SPREAD))
        if near and near[0] + 1 >= k:
            # The pool as it is where no sequence is longer than the context.
            pages = len(keys) * pages_of(context)
            cache = KVCache(pool.key[:pages], pool.value[:pages], pool.format)
            steps = [slots_of([trace.picks[key][query] for key in keys], context) for query in near]
            jobs.append([partial(gather_rows, cache, slots) for slots in steps])
            found.append({"context": context, "runs": sum(map(mean_runs, steps)) / len(steps)})
    seconds = interleaved(jobs, REPEATS * 4, of=min) if jobs else []
    return [row | {"seconds": taken / len(keys)} for row, taken in zip(found, seconds, strict=True)]


def last_apart(queries: list[int], apart: int) -> list[int]:
    """The last NEAR of an ascending list, `apart` from one another at least: as far as the recording is anywhere."""
    found: list[int] = []
    for query in reversed(queries):
        if len(found) < NEAR and (not found or found[-1] - query >= apart):
            found.append(query)
    return found[::-1]
