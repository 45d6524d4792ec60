"""One decode step: by hand, against itself, and against what an observer sees of the real operators."""

from dataclasses import replace

import pytest

from tilesieve.cost import ZERO
from tilesieve.ledger import total
from tilesieve.ledger.models import LLAMA31_8B, SMOLLM2_135M
from tilesieve.ledger.step import Step, attention, decode_step
from tilesieve.ops import catalogue
from tilesieve.policies import SHARES

MODELS = (SMOLLM2_135M, LLAMA31_8B)
DENSE = Step(context=4096)
SPARSE = Step(context=4096, k=256, d_score=32)


def by_name(rows):
    assert len({row.op for row in rows}) == len(rows)
    return {row.op: row for row in rows}


def test_dense_attention_of_smollm2_by_hand():
    row = by_name(decode_step(SMOLLM2_135M, DENSE))["gqa_decode"]
    assert row.calls == 30 and row.stage == "compute"
    assert row.cost.flops == 30 * 2 * 9 * 4096 * (64 + 64) == 283_115_520
    keys_and_values = 4096 * SMOLLM2_135M.kv_bytes_per_token()
    assert keys_and_values == 94_371_840
    # q; the table of 64 pages, length, seq, position; out and lse in fp32.
    assert row.cost.bytes_min == keys_and_values + 30 * (9 * 64 * 2 + 4 * (64 + 1 + 2) + 4 * 9 * (64 + 1))


def test_scoring_of_the_8b_by_hand():
    rows = by_name(decode_step(LLAMA31_8B, Step(32768, k=256, d_score=32, score_format="score_bf16")))
    score = rows["lowrank"]
    assert score.cost.bytes_min == 32 * (
        32768 * 8 * 32 * 2  # 2 MiB of reduced keys per kv head
        + 32 * 32 * 2 + 8 * 32  # queries, which dimensions
        + 4 * 512 + 4 + 8  # table, length, seq and position
        + 4 * 32 * 32768  # scores
    )  # fmt: skip
    # 2 097 152 for [1,32] x [32,32768] of each head, and a product by `scale` for each score.
    assert score.cost.flops == 32 * 32 * (2_097_152 + 32768)
    assert rows["sparse_gqa"].cost.flops == 32 * 32 * 2 * 256 * 256


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_weights_are_read_once_and_multiplied_once(model):
    """What does not grow with the batch is the weights; the embedding's rows do."""
    one, two = (total(decode_step(model, replace(DENSE, batch=b))) for b in (1, 2))
    table = model.vocab * model.hidden
    assert 2 * one.bytes_min - two.bytes_min == 2 * (model.parameters() - (0 if model.tied else table))
    linear = [r for r in decode_step(model, DENSE) if r.op in
              ("qkv projection", "out projection", "gate and up", "down", "head")]  # fmt: skip
    norms = model.hidden * (2 * model.layers + 1)
    assert total(linear).flops == 2 * (model.parameters() - norms - (0 if model.tied else table))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
@pytest.mark.parametrize(("share", "packed"), [*((s, False) for s in SHARES), ("layer", True), ("kv_head", True)])
def test_totals_are_sums_and_rows_are_in_flow_order(model, share, packed):
    rows = decode_step(model, replace(SPARSE, share=share, packed=packed))
    summed = sum((row.cost for row in rows), ZERO)
    assert total(rows) == summed
    assert summed.flops == sum(row.cost.flops for row in rows)
    assert summed.bytes_min == sum(row.cost.bytes_min for row in rows)
    assert summed.launches == sum(row.cost.launches for row in rows)
    names = [row.op for row in rows if row.op in catalogue.NAMES]
    assert names == sorted(names, key=catalogue.NAMES.index)
    assert ("gather" in names) == packed
    for row in rows:
        if row.op in catalogue.NAMES:
            assert row.calls == model.layers and row.stage == dict(e[:2] for e in catalogue.CATALOGUE)[row.op]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("k", [4096, 5000])
def test_a_selection_of_everything_costs_at_least_dense(share, k):
    for model in MODELS:
        dense, sparse = (total(decode_step(model, s)) for s in (DENSE, replace(SPARSE, k=k, share=share)))
        assert sparse.flops >= dense.flops and sparse.bytes_min >= dense.bytes_min
        attend = by_name(attention(model, replace(SPARSE, k=k, share=share)))["sparse_gqa"]
        assert attend.cost.flops == by_name(attention(model, DENSE))["gqa_decode"].cost.flops


def test_cost_grows_with_each_knob():
    def cost(**changes):
        return total(decode_step(SMOLLM2_135M, replace(SPARSE, **changes)))

    base = cost()
    for changes in ({"context": 8192}, {"batch": 2}, {"k": 512}, {"d_score": 48}, {"share": "kv_head"}, {"basis": True},
                    {"score_format": "score_fp32"}, {"cache": "kv_fp32"}, {"packed": True}):  # fmt: skip
        assert cost(**changes).bytes_min > base.bytes_min, changes
    assert cost(share="q_head").bytes_min > cost(share="kv_head").bytes_min
    assert cost(packed=True).flops == base.flops


@pytest.mark.parametrize(("share", "lists"), [("layer", 1), ("kv_head", 3)])
def test_a_packed_gather_by_hand(share, lists):
    """Rows are read, written, and read again by attention: the three passes of k_from_cost."""
    rows = by_name(attention(SMOLLM2_135M, replace(SPARSE, share=share, packed=True)))
    selected = 256 * SMOLLM2_135M.kv_bytes_per_token()
    assert rows["gather"].cost.bytes_min == 2 * selected + 30 * lists * (256 * 8 + 4)
    assert rows["gather"].cost.flops == 0
    attend = rows["sparse_gqa"].cost.bytes_min
    assert attend == selected + 30 * (9 * 64 * 2 + 256 * 8 + 4 + 4 * 9 * (64 + 1))


def test_qk_norm_adds_its_rows():
    normed = replace(SMOLLM2_135M, qk_norm=True)
    plain, more = (by_name(decode_step(m, SPARSE)) for m in (SMOLLM2_135M, normed))
    assert set(more) - set(plain) == {"norm of queries"}
    assert more["norm of queries"].cost.flops == 30 * 4 * 9 * 64
    assert more["kv_append"].cost.flops - plain["kv_append"].cost.flops == 30 * 4 * 3 * 64


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"context": 0}, "context is 0; allowed: an integer >= 1"),
        ({"batch": True}, "batch is True"),
        ({"k": -1}, "k is -1"),
        ({"d_score": 0}, "d_score is 0"),
        ({"page_size": 0}, "page_size is 0"),
        ({"score_format": "int8"}, "score_format is 'int8'; allowed: score_fp32, score_bf16, score_int8, score_fp8"),
        ({"share": "head"}, "share is 'head'; allowed: layer, kv_head, q_head"),
        ({"share": "q_head", "packed": True}, "packed is True with share 'q_head'; allowed: layer, kv_head"),
        ({"cache": "fp8"}, "cache is 'fp8'; allowed: kv_bf16, kv_fp16, kv_fp32"),
    ],
)
def test_a_step_that_cannot_be(changes, text):
    with pytest.raises(ValueError, match=text):
        replace(SPARSE, **changes)


def test_a_score_wider_than_a_head_is_refused():
    with pytest.raises(ValueError, match="d_score is 65; allowed: 1 to 64, SmolLM2-135M's head dimension"):
        decode_step(SMOLLM2_135M, replace(SPARSE, d_score=65))
    assert decode_step(SMOLLM2_135M, replace(DENSE, d_score=65))  # dense scores nothing
