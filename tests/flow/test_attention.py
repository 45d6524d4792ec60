"""The five lines on caches of several sequences: against attention by hand, and row by row."""

import pytest
import torch

from tilesieve.formats.kv import new_kv
from tilesieve.formats.score import new_scores
from tilesieve.layers.attention import (
    Kept,
    Memory,
    Reads,
    attend_rows,
    attend_step,
    blank,
    projection_of,
    window_selection,
)
from tilesieve.layers.dense import contiguous, dense_rows
from tilesieve.ops.kv_append.op import kv_append
from tilesieve.ops.score_append.op import score_append
from tilesieve.policies import Cosine, Every, Policy, Scoring, window
from tilesieve.types import Pages, Rows

H, G, D, DV, P = 6, 2, 16, 12, 8
LENGTHS = (70, 33, 5)


def reads(scoring: Scoring | None = None, seed: int = 0) -> Reads:
    """Three sequences in shuffled pages."""
    g = torch.Generator().manual_seed(seed)
    pages = [-(-n // P) for n in LENGTHS]
    order = torch.randperm(sum(pages), generator=g).int().split(pages)
    table = torch.full((3, max(pages)), -1, dtype=torch.int32)
    kv = new_kv("kv_fp32.head", sum(pages), P, G, D, DV)
    for seq, (length, mine) in enumerate(zip(LENGTHS, order, strict=True)):
        table[seq, : len(mine)] = mine
        position = torch.arange(length)
        slot = mine.long()[position // P] * P + position % P
        k, v = torch.randn(length, G, D, generator=g) * 2, torch.randn(length, G, DV, generator=g)
        kv_append(k, v, kv, slot)
    noun = Pages(table, torch.tensor(LENGTHS, dtype=torch.int32), P, max(LENGTHS))
    if scoring is None or scoring.columns is None:
        return Reads(kv, None, None, noun)
    keys = torch.cat([contiguous(kv, noun, seq, n)[0].transpose(0, 1) for seq, n in enumerate(LENGTHS)])
    projection = projection_of(scoring, keys)
    cache = new_scores(scoring.format, sum(pages), P, G, scoring.columns)
    for seq, length in enumerate(LENGTHS):
        position = torch.arange(length)
        score_append(contiguous(kv, noun, seq, length)[0].transpose(0, 1), projection, cache,
                     table[seq].long()[position // P] * P + position % P)  # fmt: skip
    return Reads(kv, cache, projection, noun)


def by_hand(q, r, seq, position, allowed):
    """fp64 attention of one row over `allowed` positions (a set per kv head or one)."""
    key, value = (t.double() for t in contiguous(r.kv, r.pages, seq, position + 1))
    out = torch.empty(H, DV, dtype=torch.float64)
    for head in range(H):
        kv = head // (H // G)
        where = torch.tensor(sorted(allowed[kv] if isinstance(allowed, list) else allowed))
        s = key[kv, where] @ q[head].double() * D**-0.5
        out[head] = torch.softmax(s, 0) @ value[kv, where]
    return out


def best(q, r, seq, position, k):
    """The k positions with most mass over all heads, by a full stable sort in fp64."""
    key, _ = contiguous(r.kv, r.pages, seq, position + 1)
    key = key.double().repeat_interleave(H // G, 0)
    mass = torch.softmax(torch.einsum("hd,hld->hl", q.double(), key) * D**-0.5, -1).sum(0)
    return set(mass.sort(stable=True, descending=True).indices[:k].tolist())


def test_rows_attend_to_their_best_positions():
    r = reads()
    q = torch.randn(LENGTHS[0], H, D)
    kept = Kept()
    got = attend_rows(q, r, 0, 0, Policy(k=9, last=0), keep=kept)
    for row in (0, 5, 8, 9, 40, 69):
        want = best(q[row], r, 0, row, 9)
        assert set(kept.selections[0].index[row].tolist()) - {-1} == want
        assert (got[row] - by_hand(q[row], r, 0, row, want)).abs().max() < 1e-5


def test_dense_below_and_chunks_do_not_change_rows(monkeypatch):
    r = reads()
    q = torch.randn(LENGTHS[0], H, D)
    whole = attend_rows(q, r, 0, 0, Policy(k=9))
    monkeypatch.setattr("tilesieve.layers.attention.CHUNK", 13)
    assert torch.equal(attend_rows(q, r, 0, 0, Policy(k=9)), whole)
    assert torch.equal(attend_rows(q[50:60], r, 0, 50, Policy(k=9)), whole[50:60])
    mixed = attend_rows(q, r, 0, 0, Policy(k=9, dense_below=30))
    assert torch.equal(mixed[30:], whole[30:])
    assert torch.equal(mixed[:30], dense_rows(q[:30], r.kv, r.pages, 0, 0))


POLICIES = {
    "exact": Policy(k=9),
    "kv_head": Policy(k=9, share="kv_head"),
    "q_head": Policy(k=9, share="q_head", first=1),
    "pca_int8": Policy(k=9, scoring=Scoring("pca", 8, "score_int8")),
    "pairs": Policy(k=9, scoring=Scoring("pairs_slow", 8)),
    "window": window(9),
    "every_3": Policy(k=9, reselect=Every(3)),
    "cosine": Policy(k=9, reselect=Cosine(reuse=0.5, reselect=0.0)),
    "dense_below": Policy(k=9, dense_below=20),
}


def steps(r, policy, which, q):
    """Two steps of the sequences `which`, at the last two positions of each."""
    memory = blank(policy, G, q[0][which])
    found = []
    for back, query in ((2, q[0]), (1, q[1])):
        at = [LENGTHS[s] - back for s in which]
        rows = Rows(torch.tensor(which, dtype=torch.int32), torch.tensor(at, dtype=torch.int32))
        found.append(attend_step(query[which], r, rows, at, policy, memory))
    return found, memory


@pytest.mark.parametrize("name", POLICIES)
def test_a_step_of_one_sequence_is_its_row_in_the_batch(name):
    policy = POLICIES[name]
    r = reads(policy.scoring)
    q = (torch.randn(3, H, D), torch.randn(3, H, D))
    together, memory = steps(r, policy, [0, 1, 2], q)
    for seq in range(3):
        alone, own = steps(r, policy, [seq], q)
        assert all(torch.equal(a[0], t[seq]) for a, t in zip(alone, together, strict=True))
        assert torch.equal(own.selection.index[0], memory.selection.index[seq])
        assert (own.age[0], own.due[0]) == (memory.age[seq], memory.due[seq])


def test_rows_of_one_batch_may_decide_differently():
    """Row 0 repeats its query and keeps its set, row 1 turns and selects again."""
    policy = Policy(k=4, reselect=Cosine())
    r = reads()
    first = torch.randn(3, H, D)
    second = first.clone()
    second[1] = -first[1]
    _, memory = steps(r, policy, [0, 1, 2], (first, second))
    assert memory.due == [False, True, False] and memory.age == [1, 0, 1]
    assert memory.selected_at.tolist() == [LENGTHS[0] - 2, LENGTHS[1] - 1, LENGTHS[2] - 2]


def test_reused_set_plus_the_new_token_by_hand():
    policy = Policy(k=6, last=0, reselect=Every(2))
    r = reads()
    q = (torch.randn(3, H, D), torch.randn(3, H, D))
    (_, got), memory = steps(r, policy, [0], q)
    position = LENGTHS[0] - 1
    allowed = best(q[0][0], r, 0, position - 1, 6) | {position}
    assert (got[0] - by_hand(q[1][0], r, 0, position, allowed)).abs().max() < 1e-5
    assert isinstance(memory, Memory) and memory.age == [1]


def test_window_is_the_first_and_the_most_recent():
    rows = Rows(torch.zeros(4, dtype=torch.int32), torch.tensor([-1, 3, 8, 20], dtype=torch.int32))
    selection = window_selection(rows, window(7, sinks=2))
    assert selection.index.tolist() == [
        [-1] * 7, [0, 1, 2, 3, -1, -1, -1], [0, 1, 4, 5, 6, 7, 8], [0, 1, 16, 17, 18, 19, 20],
    ]  # fmt: skip
    assert selection.count.tolist() == [0, 4, 7, 7]


def test_reduced_scores_without_a_cache_are_refused():
    with pytest.raises(ValueError, match="score cache is None; 'pca' scoring reads one"):
        attend_rows(torch.randn(3, H, D), reads(), 0, 0, Policy(k=2, scoring=Scoring("pca", 4)))
