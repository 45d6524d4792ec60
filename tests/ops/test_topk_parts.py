"""Laws of topk over the parts of a row and of a batch: padding, chunks, threads, shards, blocks, scratch."""

import weakref

import pytest
import torch
from harness import flat_call, same_bits, spread
from hypothesis import given, settings
from hypothesis import strategies as st
from topk_oracle import INF, NAN, best, ints, picks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tilesieve.ops import run
from tilesieve.ops.topk import cost, cpu, keys
from tilesieve.ops.topk.op import topk

IMPLS = pytest.mark.parametrize("impl", ["reference", "cpu"])
REDUCES = pytest.mark.parametrize(
    "more",
    [{}, {"share": "layer"}, {"share": "kv_head", "groups": 2, "reduce": "sum"}, {"share": "layer", "reduce": "max"}],
    ids=["q_head", "mass", "sum", "max"],
)


@REDUCES
@pytest.mark.parametrize("width", [3, 9, 15, 16, 17, 63, 64, 200])
def test_padding_does_not_show(width, more):
    """Columns of -inf appended, and a batch that reaches further, change no row. Near-ties show the last bit:
    a softmax of fewer than 16 columns adds up in another order."""
    scores = (torch.randn(40, 4, 1) + torch.randn(40, 4, width) * 1e-6).contiguous()
    k = max(1, width // 2)
    want = topk(scores, k=k, **more)
    for extra in (1, 7, 13, 64, 1000):
        longer = torch.cat([scores, torch.full((40, 4, extra), -INF)], -1)
        assert same_bits(topk(longer, k=k, **more).index, want.index)
        longer[..., width:] = 7.0
        end = torch.full((40,), width, dtype=torch.int32)
        assert same_bits(topk(longer, k=k, end=end, **more).index, want.index)
        # A neighbour that uses all columns.
        both = topk(torch.cat([longer, longer[:1]]), k=k, end=torch.cat([end, ints(width + extra)]), **more)
        assert same_bits(both.index[:-1], want.index)


@REDUCES
@pytest.mark.parametrize("values", ["normal", "few"])
def test_chunks_threads_and_strides_do_not_show(monkeypatch, values, more):
    scores = torch.randn(23, 4, 300)
    scores = scores.round() if values == "few" else scores
    end = torch.randint(0, 301, (23,), dtype=torch.int32)
    want = topk(scores, k=40, end=end, **more)
    layouts = (scores.transpose(0, 1).contiguous().transpose(0, 1), scores.transpose(1, 2).contiguous().transpose(1, 2),
               spread(scores), scores[:1].expand(23, -1, -1))  # fmt: skip
    for layout in layouts[:3]:
        assert same_bits(topk(layout, k=40, end=end, **more).index, want.index)
    # Stride 0: each row is row 0, under its own end.
    repeated = topk(scores[:1].repeat(23, 1, 1), k=40, end=end, **more)
    assert same_bits(topk(layouts[3], k=40, end=end, **more).index, repeated.index)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert same_bits(topk(scores, k=40, end=end, **more).index, want.index)
    finally:
        torch.set_num_threads(threads)
    for scratch, buffer, together in ((1, 1, 1), (60_000, 9000, 1000), (1 << 30, 1 << 30, 1 << 30)):
        monkeypatch.setattr(cpu, "SCRATCH", scratch)
        monkeypatch.setattr(keys, "BUFFER", buffer)
        monkeypatch.setattr(cpu, "_TOGETHER", together)
        assert same_bits(topk(scores, k=40, end=end, **more).index, want.index)


@IMPLS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_best_of_the_shards_best_is_the_best(data, impl):
    """Cut a row anywhere, take k of each part and k of what remains: the k of the whole."""
    values = st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, INF, -INF, NAN])
    row = data.draw(st.lists(values, min_size=1, max_size=40))
    k = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(row)), max_size=4)))
    survivors = []
    for a, b in zip([0, *cuts], [*cuts, len(row)], strict=True):
        survivors += [a + c for c in picks(row[a:b], impl, k=k)] if b > a else []
    merged = picks([row[c] for c in survivors], impl, k=k) if survivors else []
    assert [survivors[c] for c in merged] == picks(row, impl, k=k)


# --- the approximate form ----------------------------------------------------------------------------------


@IMPLS
def test_a_key_ranked_ninth_in_its_block_is_lost_at_eight(impl):
    """Eight blocks of 64; block 2 holds the nine best keys of the row."""
    row = torch.rand(512)
    row[128 + torch.arange(9) * 7] = torch.arange(20.0, 11.0, -1.0)
    ninth = 128 + 8 * 7
    for local_k, found in ((8, False), (9, True), (16, True), (64, True), (None, True)):
        got = picks(row, impl, k=12, local_k=local_k, block=64)
        assert (ninth in got) == found, local_k
        assert len(got) == 12
    exact = picks(row, impl, k=12)
    assert exact == best(row.tolist(), 12)
    assert picks(row, impl, k=12, local_k=16, block=64) == exact


@IMPLS
def test_blocks_are_counted_from_the_start_of_the_row(impl):
    row = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0])
    assert picks(row, impl, k=4, local_k=1, block=2) == [0, 2, 4, 6]
    assert picks(row, impl, k=4, local_k=1, block=2, start=ints(1)) == [1, 3, 5, 7]
    assert picks(row, impl, k=4, local_k=1, block=3, start=ints(1), end=ints(6)) == [1, 4]
    # Forced picks take no place of their block's best.
    assert picks(row, impl, k=4, local_k=1, block=4, first=1, last=1) == [0, 1, 4, 7]
    assert picks(row, impl, k=4, local_k=1, block=100) == [0]
    # Also of a mass, and where k would hold all columns.
    heads = torch.stack([row.flip(0), row.flip(0)])[None]
    assert picks(heads, impl, k=9, local_k=1, block=3, share="layer") == [[2, 5, 7]]


@IMPLS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_local_form_is_exact_from_min_k_block_on(data, impl):
    width, block, k = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 14))
    row = [data.draw(st.sampled_from([0.0, 1.0, 2.0, -INF])) for _ in range(width)]
    start = data.draw(st.integers(0, width - 1))
    first = data.draw(st.integers(0, min(2, k)))
    more = {"k": k, "start": ints(start), "first": first, "block": block}
    exact = picks(row, impl, **more)
    assert picks(row, impl, local_k=min(k, block), **more) == exact
    # Below, it is the best of what each block offers.
    local = data.draw(st.integers(1, 12))
    forced = range(start, min(start + first, width))
    offered = [-INF] * width
    for at in range(start, width, block):
        of = range(at, min(at + block, width))
        for c in best([-INF if c in forced else row[c] for c in range(width)], local, at, of.stop):
            offered[c] = row[c]
    want = best(offered, k, start, None, first)
    assert picks(row, impl, local_k=local, **more) == want


# --- scratch -----------------------------------------------------------------------------------------------


class Live(TorchDispatchMode):
    """The bytes of tensors born inside that are alive at once."""

    def __init__(self):
        super().__init__()
        self.held, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            pointer, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
            if pointer in self.held or (pointer not in known and size):
                self.now += size if pointer not in self.held else 0
                self.held[pointer] = (size, self.held.get(pointer, (0, 0))[1] + 1)
                weakref.finalize(tensor, self.drop, pointer)
        self.peak = max(self.peak, self.now)
        return result

    def drop(self, pointer):
        size, views = self.held.pop(pointer)
        if views > 1:
            self.held[pointer] = (size, views - 1)
        else:
            self.now -= size


@pytest.mark.parametrize(
    "more",
    [
        *({"share": "layer"}, {"share": "layer", "first": 4, "last": 64}, {"share": "layer", "k": 20_000}),
        *({}, {"local_k": 40}, {"local_k": 600, "block": 700}),
    ],
    ids=str,
)
def test_scratch_stays_within_the_workspace(monkeypatch, more):
    """Whatever the rows: 300 rows of 4 heads by 3000 columns are 14 MB of scores."""
    assert (cpu.SCRATCH, keys.BUFFER) == (cost.SCRATCH, cost.BUFFER)
    for module, name, size in ((cpu, "SCRATCH", 1 << 20), (keys, "BUFFER", 1 << 18)):
        monkeypatch.setattr(module, name, size)
        monkeypatch.setattr(cost, name, size)
    scores = torch.randn(300, 4, 3000)
    scores[::2] = scores[::2].round()
    end = torch.randint(1500, 3001, (300,), dtype=torch.int32)
    call = flat_call("topk", {"scores": scores, "k": 700, "end": end, "block": 500} | more)
    out = tuple(torch.empty(shape, dtype=dtype) for shape, dtype in call.op.outputs(*call.args))
    with Live() as live:  # not around the operator: what an operator does inside is hidden from a mode
        cpu.topk(*call.args, out=out)
    bounds = {n: v for n, v in call.sizes().items() if n not in ("starts", "ends")}
    assert 1 << 18 < live.peak <= run.workspace_bytes("topk", **bounds)
