"""transformers' own models, run by our operators: dense equals theirs, and the sparse laws."""

import pytest
import torch
from models import FAMILIES, tiny

from tilesieve.hf.attention import forward, install
from tilesieve.hf.session import Session
from tilesieve.hf.shape import shape_of
from tilesieve.policies import Cosine, Every, Policy, Scoring, window

T = 150


def ids(seed=0, tokens=T):
    return torch.randint(0, 97, (tokens,), generator=torch.Generator().manual_seed(seed))


def own_logits(family, tokens):
    with torch.no_grad():
        return tiny(family)(tokens[None], use_cache=False).logits[0].float()


def ready(family):
    model = tiny(family)
    install(model)
    return model, shape_of(model.config)


@pytest.mark.parametrize("family", FAMILIES)
def test_dense_equals_the_model_itself(family):
    want = own_logits(family, ids())
    model, shape = ready(family)
    session = Session.new(shape, None, tokens=T)
    got = forward(model, ids(), session, "dense", keep=T)
    assert (got - want).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_dense_steps_and_chunks_equal_one_pass(family):
    want = own_logits(family, ids())
    model, shape = ready(family)
    session = Session.new(shape, None, tokens=T)
    got = [forward(model, ids()[:70], session, "prefill", keep=70)]
    got.append(forward(model, ids()[70:140], session, "prefill", keep=70))
    got += [forward(model, ids()[t : t + 1], session, "dense") for t in range(140, T)]
    # 3e-5: another order of fp32 sums through three layers; largest seen 6e-6.
    assert (torch.cat(got) - want).abs().max() <= 3e-5 * want.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", ["layer", "kv_head", "q_head"])
def test_k_at_least_the_context_is_dense(family, share):
    want = own_logits(family, ids())
    model, shape = ready(family)
    session = Session.new(shape, Policy(k=T, share=share), tokens=T)
    got = forward(model, ids(), session, "rows", keep=T)
    assert (got - want).abs().max() <= 1e-5 * max(1.0, float(want.abs().max()))


POLICIES = {
    "exact": Policy(k=12),
    "per_kv_head": Policy(k=12, share="kv_head", first=2, last=3),
    "per_q_head": Policy(k=12, share="q_head", last=0),
    "sum": Policy(k=12, reduce="sum"),
    "prefix": Policy(k=12, scoring=Scoring("prefix", 8)),
    "pairs_slow_bf16": Policy(k=12, scoring=Scoring("pairs_slow", 8, "score_bf16")),
    "pairs_fast_fp8": Policy(k=12, scoring=Scoring("pairs_fast", 8, "score_fp8")),
    "pca_int8": Policy(k=12, scoring=Scoring("pca", 8, "score_int8")),
    "window": window(12),
    "local_k": Policy(k=12, local_k=4, block=16),
    "dense_below": Policy(k=12, dense_below=60),
    "dense_layer": Policy(k=12, dense_layers=frozenset({1})),
}


@pytest.mark.parametrize("name", POLICIES)
def test_decode_with_caches_equals_one_pass(name):
    """Reselecting at every step, token by token gives what all rows at once give."""
    model, shape = ready("llama")
    policy = POLICIES[name]
    sets: dict[tuple[int, int], list] = {}
    whole = Session.new(shape, policy, tokens=T, prompt=100)
    whole.looked = {}

    def look(seen):
        whole.looked[seen.layer] = (seen.q, seen.key)
        collect(sets, seen)

    whole.watch = look
    want = forward(model, ids(), whole, "rows", keep=T)
    stepped = Session.new(shape, policy, tokens=T, prompt=100)
    forward(model, ids()[:100], stepped, "rows")
    mine: dict[tuple[int, int], list] = {}
    stepped.watch = lambda seen: collect(mine, seen)
    got = torch.cat([forward(model, ids()[t : t + 1], stepped, "step") for t in range(100, T)])
    assert (got - want[100:]).abs().max() <= 1e-4
    different = [key for key in mine if sets[key] != mine[key]]
    assert len(mine) > 0
    if policy.scoring.format == "score_int8" or policy.scoring.format == "score_fp8":
        # A query that differs in its last bit may fall on the other side of a quantisation step: no margin holds.
        assert len(different) <= 0.01 * len(mine)
    else:
        assert [key for key in different if margin(whole, key, sets[key], mine[key]) > 1e-5] == []


def margin(session, key, one, other):
    """How far apart in attention mass the positions are that only one of two sets has (exact scores, any share)."""
    layer, row = key
    q, keys = session.looked[layer]
    heads, groups = q.shape[1], keys.shape[0]
    scores = torch.einsum(
        "hd,hld->hl", q[row].double(), keys[:, : row + 1].double().repeat_interleave(heads // groups, 0)
    )
    mass = torch.softmax(scores * q.shape[-1] ** -0.5, -1)
    sets = mass.view(len(one), heads // len(one), -1).sum(1)
    apart = [sorted(set(a) ^ set(b)) for a, b in zip(one, other, strict=True)]
    return max(float(m[list(p)].max() - m[list(p)].min()) for m, p in zip(sets, apart, strict=True) if p)


def collect(sets, seen):
    row = seen.start + seen.q.shape[0] - sum(s.index.shape[0] for s in seen.selections)
    for selection in seen.selections:
        for index in selection.index:
            sets[seen.layer, row] = [sorted(head) for head in index.view(-1, index.shape[-1]).tolist()]
            row += 1


def test_sparse_differs_from_dense_where_k_is_small():
    """The laws above would hold for a session that ignored its policy; this one would not."""
    want = own_logits("llama", ids())
    model, shape = ready("llama")
    got = forward(model, ids(), Session.new(shape, Policy(k=4), tokens=T), "rows", keep=T)
    assert (got[:4] - want[:4]).abs().max() <= 1e-5
    assert (got[50:] - want[50:]).abs().max() > 1e-2


def test_reuse_reads_the_last_set_and_what_came_since():
    model, shape = ready("llama")
    session = Session.new(shape, Policy(k=8, reselect=Every(4)), tokens=T)
    forward(model, ids()[:100], session, "prefill")
    chosen = []
    session.watch = lambda seen: chosen.append((seen.layer, seen.start, seen.selections[0].index.tolist()))
    for t in range(100, 112):
        forward(model, ids()[t : t + 1], session, "step")
    for layer in range(3):
        at = {start: index for where, start, index in chosen if where == layer}
        # The prompt's set serves 100, 101, 102; 103 selects, then 107 and 111.
        assert at[100] == at[101] == at[102] and at[103] == at[104] == at[105] == at[106]
        assert max(at[103][0]) == 103 and max(at[102][0]) <= 99 and max(at[107][0]) == 107


def test_reuse_of_everything_is_dense():
    """A set that held the whole prompt, plus all that was appended, is dense attention."""
    want = own_logits("llama", ids())
    model, shape = ready("llama")
    session = Session.new(shape, Policy(k=T, reselect=Every(1000)), tokens=T)
    forward(model, ids()[:100], session, "prefill")
    got = torch.cat([forward(model, ids()[t : t + 1], session, "step") for t in range(100, T)])
    # 3e-5: merge of two parts in another order of fp32 sums; largest seen 6e-6.
    assert (got - want[100:]).abs().max() <= 3e-5 * want.abs().max()
    assert session.memories[0].age == [50]


def test_cosine_policy_selects_by_the_query():
    model, shape = ready("llama")
    always = Session.new(shape, Policy(k=8, reselect=Cosine(reuse=1.0, reselect=1.0)), tokens=T)
    never = Session.new(shape, Policy(k=8, reselect=Cosine(reuse=-1.0, reselect=-1.0, longest=1000)), tokens=T)
    for session in (always, never):
        forward(model, ids()[:100], session, "prefill")
        for t in range(100, 110):
            forward(model, ids()[t : t + 1], session, "step")
    assert always.memories[0].age == [0]
    assert never.memories[0].age == [9]  # no earlier query at the first step: it selects


def test_a_prompt_leaves_the_positions_its_last_queries_looked_at():
    model, shape = ready("llama")
    session = Session.new(shape, Policy(k=10, share="kv_head", last=0, reselect=Every(1000)), tokens=T)
    seen = []
    session.watch = seen.append
    forward(model, ids()[:100], session, "prefill")
    last = next(s for s in seen if s.layer == 0)
    key = last.key.double().repeat_interleave(2, 0)
    scores = (last.q[-32:].double().transpose(0, 1) @ key.transpose(1, 2)) * last.scale
    hidden = torch.arange(100) > torch.arange(68, 100)[:, None]
    mass = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1).sum(1).view(2, 2, 100).sum(1)
    want = mass.topk(10, -1).indices.sort(-1).values
    session.watch = None
    forward(model, ids()[100:101], session, "step")
    assert torch.equal(session.memories[0].selection.index[0].long(), want)


def test_priming_changes_nothing_but_when_it_is_done():
    model, shape = ready("llama")
    policy = Policy(k=8, scoring=Scoring("pca", 8, "score_int8"), reselect=Every(3))
    results = []
    for primed in (False, True):
        session = Session.new(shape, policy, tokens=T, prompt=60)
        forward(model, ids()[:100], session, "prefill")
        if primed:
            session.prime()
        results.append(torch.cat([forward(model, ids()[t : t + 1], session, "step") for t in range(100, 105)]))
    assert torch.equal(*results)


def test_a_branch_leaves_the_original_alone():
    model, shape = ready("llama")
    session = Session.new(shape, None, tokens=T)
    forward(model, ids()[:100], session, "prefill")
    key = session.pool.layers[0].kv.key.clone()
    branch = session.branch(Policy(k=8, scoring=Scoring("pca", 8, "score_int8")))
    a = forward(model, ids()[100:101], branch, "step")
    assert session.length() == 100 and branch.length() == 101
    assert torch.equal(session.pool.layers[0].kv.key, key)
    assert session.pool.layers[0].score is None
    again = session.branch(branch.policy)
    assert torch.equal(forward(model, ids()[100:101], again, "step"), a)


def test_a_model_with_an_attention_of_its_own_is_refused():
    """Falcon never calls the attention interface: without a check its dense logits would pass for sparse ones."""
    import transformers as tf

    config = tf.FalconConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)
    model = tf.FalconForCausalLM(config).eval()
    with pytest.raises(ValueError, match="Falcon"):
        install(model)
        forward(model, ids(), Session.new(shape_of(config), Policy(k=2), tokens=T), "rows")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, s: Session.new(s, None, tokens=513), "tokens is 513; the model's context is 512"),
        (lambda m, s: Session.new(s, None, tokens=0), "tokens is 0"),
        (
            lambda m, s: forward(m, ids(), Session.new(s, None, tokens=100), "dense"),
            "tokens is 100: 0 are used and 150",
        ),
        (lambda m, s: forward(m, ids(), Session.new(s, None, tokens=T), "rows"), "policy is None; 'rows' needs one"),
        (lambda m, s: forward(m, ids(), Session.new(s, Policy(k=2), tokens=T), "step"), "a step takes 1"),
        (lambda m, s: forward(m, ids()[None], Session.new(s, None, tokens=T), "dense"), "ids has shape \\(1, 150\\)"),
        (lambda m, s: forward(m, ids()[:0], Session.new(s, None, tokens=T), "dense"), "ids has shape \\(0,\\)"),
        (lambda m, s: forward(m, ids(), Session.new(s, None, tokens=T), "fast"), "way is 'fast'"),
        (lambda m, s: m(ids()[None]), "was not handed its session"),
    ],
)
def test_wrong_calls_say_what_came(call, said):
    model, shape = ready("llama")
    with pytest.raises(ValueError, match=said), torch.no_grad():
        call(model, shape)
