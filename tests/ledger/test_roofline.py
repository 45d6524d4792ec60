"""Floors by hand, and where the verdict flips."""

from dataclasses import replace

import pytest

from tilesieve.cost import Cost
from tilesieve.ledger.chips import H200, H200_MEASURED, cpu
from tilesieve.ledger.models import LLAMA31_8B, SMOLLM2_135M
from tilesieve.ledger.roofline import Floor, context_flip, first, floor, k_limit, seconds
from tilesieve.ledger.rows import Row
from tilesieve.ledger.step import Step, decode_step
from tilesieve.policies import k_from_cost

TOY = replace(
    cpu("toy", flops={"bfloat16": 100.0, "int8": 200.0}, bytes_per_second=10.0, source="made up"),
    launch_eager=3.0,
    launch_graph=1.0,
)


def test_a_floor_by_hand():
    row = Row("x", "around", 2, Cost(flops=400, bytes_min=70, launches=2))
    assert floor(row, TOY) == Floor(4.0, 7.0, 2.0)
    assert (floor(row, TOY).seconds, floor(row, TOY).roof) == (7.0, "memory")
    assert floor(replace(row, cost=Cost(1000, 70)), TOY).roof == "arithmetic"
    assert floor(replace(row, cost=Cost(1000, 70), dtype="int8"), TOY).roof == "memory"
    eager = floor(replace(row, cost=Cost(1, 1, launches=9)), TOY, graph=False)
    assert (eager.seconds, eager.roof) == (27.0, "launch")
    assert seconds([row, replace(row, cost=Cost(1000, 70))], TOY) == 17.0
    assert floor(Row("x", "y", 0, Cost(launches=0)), TOY).seconds == 0.0


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(ValueError, match="float32"):
        floor(Row("x", "y", 1, Cost(1, 1), dtype="float32"), TOY)
    assert floor(Row("x", "y", 1, Cost(0, 10), dtype="float32"), TOY).seconds == 1.0  # nothing to compute


def test_the_k_at_which_cost_says_stop():
    # Multiply-adds with half a pass for the gather, and bytes with a packed gather: 128 wide, 32 scored.
    assert k_from_cost(context=32768, width=128, columns=32, passes=1.5) == 19114
    assert k_from_cost(context=32768, width=128, columns=32, passes=3.0) == 9557
    same = Step(32768, k=256, d_score=32, score_format="score_bf16", packed=True)
    assert k_limit(LLAMA31_8B, same) == 9557
    assert k_limit(LLAMA31_8B, replace(same, packed=False)) == 28672  # 7/8: scores read an eighth of a row
    # int8 with a scale reads 36 bytes where a row has 512.
    assert k_limit(LLAMA31_8B, replace(same, packed=False, score_format="score_int8")) == 32768 * (512 - 36) // 512
    assert k_limit(SMOLLM2_135M, Step(4096, k=64, d_score=64, score_format="score_fp32")) == 0


def test_where_context_flips():
    step = Step(k=256, d_score=32)
    found = context_flip(LLAMA31_8B, step, H200)
    assert found is not None and found > 256

    def pays(n, **how):
        both = (replace(step, context=n), replace(step, context=n, k=None))
        sparse, dense = (seconds(decode_step(LLAMA31_8B, s), H200, **how) for s in both)
        return sparse < dense

    assert pays(found) and not pays(found - 1)
    assert all(pays(found * far) for far in (2, 16, 64))
    # Five more launches a layer: the dearer a launch, the later sparse pays.
    eager = context_flip(LLAMA31_8B, step, H200, graph=False)
    assert eager is not None and eager > found
    assert pays(eager, graph=False) and not pays(eager - 1, graph=False)
    # A batch makes every row bigger, and launches matter less.
    assert (context_flip(LLAMA31_8B, replace(step, batch=64), H200) or 0) < found
    assert context_flip(LLAMA31_8B, step, H200_MEASURED) is not None


def test_scores_as_dear_as_attention_never_pay():
    step = Step(k=256, d_score=64, score_format="score_fp32")
    assert context_flip(SMOLLM2_135M, step, H200) is None


@pytest.mark.parametrize("at", [1, 2, 3, 7, 8, 9, 1000])
def test_first(at):
    assert first(lambda n: n >= at, 1000) == at
    assert first(lambda n: n >= at, at) == at
    assert at == 1 or first(lambda n: n >= at, at - 1) is None
