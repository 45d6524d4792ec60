"""Rows that keep a set behave as decode steps do; the estimated rest is what exact scores say it is."""

import pytest
import torch

from tilesieve.formats.kv import new_kv
from tilesieve.layers.attention import Kept, Reads, attend_rows, attend_step, blank
from tilesieve.layers.reuse import sources, turns
from tilesieve.ops.kv_append.op import kv_append
from tilesieve.policies import Cosine, Every, Policy, Scoring, window
from tilesieve.types import Pages, Rows

H, G, D, T = 4, 2, 16, 60


@pytest.fixture
def world():
    kv = new_kv("kv_fp32.head", 4, 16, G, D)
    kv_append(torch.randn(T, G, D), torch.randn(T, G, D), kv, torch.arange(T))
    pages = Pages(torch.arange(4, dtype=torch.int32)[None], torch.tensor([T], dtype=torch.int32), 16, T)
    q = torch.randn(T, H, D) * 2
    for t in range(1, T):  # neighbours alike, some more than others
        q[t] = q[t - 1] * (t % 5) / 4 + q[t]
    return q, Reads(kv, None, None, pages)


def test_whose_set_a_row_uses():
    q = torch.randn(7, H, D)
    assert sources(q, 0, Policy(k=2, reselect=Every(3))) == [0, 0, 0, 3, 3, 3, 6]
    assert sources(q, 2, Policy(k=2, reselect=Every(3))) == [2, 2, 2, 5, 5]
    same = torch.ones(5, H, D)
    same[3] = -1  # turns away, and back
    assert sources(same, 0, Policy(k=2, reselect=Cosine())) == [0, 0, 0, 3, 4]
    assert sources(same[:3], 0, Policy(k=2, reselect=Cosine(longest=2))) == [0, 0, 2]


def test_turns_is_the_mean_over_heads():
    q = torch.zeros(2, 2, D)
    q[0, :, 0], q[1, 0, 0], q[1, 1, 1] = 1.0, 1.0, 1.0  # one head stays, one turns by a right angle
    assert turns(q).tolist() == [0.5]


@pytest.mark.parametrize("share", ["layer", "kv_head", "q_head"])
@pytest.mark.parametrize("reselect", [Every(1), Every(4), Cosine(0.6, 0.3), Cosine(-1.0, -1.0, longest=7)])
def test_rows_are_steps(world, share, reselect):
    q, reads = world
    policy = Policy(k=9, share=share, first=1, last=2, reselect=reselect)
    kept = Kept()
    rows = attend_rows(q, reads, 0, 0, policy, keep=kept)
    memory = blank(policy, G, q[:1])
    selected = 0
    for t in range(T):
        at = Rows(torch.zeros(1, dtype=torch.int32), torch.tensor([t], dtype=torch.int32))
        step = attend_step(q[t : t + 1], reads, at, [t], policy, memory)
        selected += memory.due[0]
        torch.testing.assert_close(rows[t : t + 1], step, rtol=1e-5, atol=1e-5)  # two operators: sums in another order
    assert len(kept.selected) == selected
    assert selected == T if reselect == Every(1) else T // 12 < selected < T


def test_chunks_do_not_show(world, monkeypatch):
    q, reads = world
    policy = Policy(k=9, reselect=Every(5))
    whole = Kept()
    want = attend_rows(q, reads, 0, 0, policy, keep=whole)
    monkeypatch.setattr("tilesieve.layers.attention.CHUNK", 7)
    parts = Kept()
    assert torch.equal(attend_rows(q, reads, 0, 0, policy, keep=parts), want)
    assert parts.selected == whole.selected == list(range(0, T, 5))


def dense_weights(q, reads):
    key = reads.kv.key.transpose(1, 2).flatten(0, 1)[:T].transpose(0, 1).double().repeat_interleave(H // G, 0)
    value = reads.kv.value.transpose(1, 2).flatten(0, 1)[:T].transpose(0, 1).double().repeat_interleave(H // G, 0)
    scores = torch.einsum("rhd,hld->rhl", q.double(), key) * D**-0.5
    scores.masked_fill_(torch.arange(T) > torch.arange(T)[:, None, None], -torch.inf)
    return scores.softmax(-1), value


@pytest.mark.parametrize("share", ["layer", "q_head"])
def test_exact_scores_estimate_the_rest_exactly(world, share):
    """The output is then dense attention with the unselected values taken for zero, not renormalised."""
    q, reads = world
    kept = Kept()
    got = attend_rows(q, reads, 0, 0, Policy(k=9, share=share, unselected="estimated"), keep=kept)
    weights, value = dense_weights(q, reads)
    index = kept.selections[0].index if share == "q_head" else kept.selections[0].index[:, None].expand(-1, H, -1)
    mask = torch.zeros(T, H, T + 1, dtype=torch.bool).scatter_(2, torch.where(index < 0, T, index).long(), True)
    want = torch.einsum("rhl,hld->rhd", weights * mask[..., :T], value)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-6)
    ignored = attend_rows(q, reads, 0, 0, Policy(k=9, share=share))
    assert (got.norm(dim=-1) <= ignored.norm(dim=-1) * (1 + 1e-5)).all()
    # Where everything is selected, nothing is left to estimate.
    assert torch.equal(got[:9], ignored[:9])


def test_the_estimate_of_a_row_does_not_depend_on_its_batch(world):
    q, reads = world
    policy = Policy(k=9, unselected="estimated")
    whole = attend_rows(q, reads, 0, 0, policy)
    assert torch.equal(attend_rows(q[40:41], reads, 0, 40, policy), whole[40:41])


def test_steps_estimate_as_rows_do(world):
    q, reads = world
    policy = Policy(k=9, unselected="estimated")
    rows = attend_rows(q, reads, 0, 0, policy)
    memory = blank(policy, G, q[:1])
    at = Rows(torch.zeros(1, dtype=torch.int32), torch.tensor([T - 1], dtype=torch.int32))
    step = attend_step(q[T - 1 :], reads, at, [T - 1], policy, memory)
    torch.testing.assert_close(step, rows[T - 1 :], rtol=1e-5, atol=1e-6)


def test_an_estimate_needs_scores_at_every_step():
    for wrong in (lambda: Policy(k=8, unselected="guessed"),
                  lambda: Policy(k=8, unselected="estimated", reselect=Every(2)),
                  lambda: Policy(k=8, unselected="estimated", scoring=Scoring("window")),):  # fmt: skip
        with pytest.raises(ValueError, match="unselected is"):
            wrong()
    assert window(8).unselected == "ignored"
