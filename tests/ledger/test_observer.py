"""The observer: rows, phases, order, and the same cost as the formula for a real call."""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import tilesieve
from tilesieve.cost import ZERO, Cost
from tilesieve.ledger import Ledger, Row, total
from tilesieve.ops import catalogue
from tilesieve.types import Groups, KVCache

SIZES = {"tokens": 5, "picks": 2, "width": 8, "experts": 4, "rows": 7}


@dataclass
class Call:
    """As little as a ledger needs: no torch, no operator."""

    name: str
    given: dict
    seconds: float = 0.5

    @property
    def op(self):
        return SimpleNamespace(name=self.name)

    def sizes(self):
        return self.given


def test_calls_of_one_operator_add_up():
    ledger = Ledger()
    for _ in range(3):
        ledger(Call("combine", SIZES))
    one = catalogue.cost("combine")(**SIZES)
    assert ledger.rows() == (Row("combine", "combine", 3, one * 3, 1.5),)
    assert ledger.total() == one * 3
    assert one.flops == 2 * 7 * 8


def test_different_sizes_add_up():
    ledger, other = Ledger(), {**SIZES, "rows": 2}
    ledger(Call("combine", SIZES))
    ledger(Call("combine", other))
    formula = catalogue.cost("combine")
    assert ledger.total() == formula(**SIZES) + formula(**other)


def test_phases_and_flow_order():
    ledger, append = Ledger(), {"rows": 1, "heads": 3, "width": 64}
    with ledger.phase("prefill"):
        ledger(Call("combine", SIZES))
        with ledger.phase("decode"):
            ledger(Call("combine", SIZES))
            ledger(Call("kv_append", append))
        ledger(Call("kv_append", append))
    ledger(Call("combine", SIZES))
    found = [(row.phase, row.op, row.calls) for row in ledger.rows()]
    assert found == [
        ("prefill", "kv_append", 1), ("prefill", "combine", 1),
        ("decode", "kv_append", 1), ("decode", "combine", 1), ("", "combine", 1),
    ]  # fmt: skip


def test_a_phase_ends_with_an_error():
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.phase("decode"):
        raise KeyError
    ledger(Call("combine", SIZES))
    assert ledger.rows()[0].phase == ""


def test_as_dicts_is_json():
    ledger = Ledger()
    with ledger.phase("decode"):
        ledger(Call("combine", SIZES))
    cost = catalogue.cost("combine")(**SIZES)
    (row,) = json.loads(json.dumps(ledger.as_dicts()))
    assert row == {
        "phase": "decode", "stage": "combine", "op": "combine", "calls": 1, "seconds": 0.5,
        "flops": cost.flops, "bytes_min": cost.bytes_min,
    }  # fmt: skip
    assert list(row) == ["phase", "stage", "op", "calls", "seconds", "flops", "bytes_min"]


def test_the_total_is_the_sum_of_the_rows():
    assert total(()) == ZERO
    rows = [Row("a", "x", 1, Cost(3, 5)), Row("b", "x", 2, Cost(7, 11, launches=4))]
    assert total(rows) == Cost(10, 16, launches=5)
    assert Ledger().rows() == () and Ledger().total() == ZERO


def test_a_real_combine_costs_what_the_formula_says():
    groups = Groups(
        token=torch.tensor([0, 2, 0, 1, -1], dtype=torch.int32),  # the last row is padding
        choice=torch.tensor([0, 1, 1, 0, 0], dtype=torch.int32),
        offsets=torch.tensor([0, 2, 3, 5], dtype=torch.int32),
        tiles=torch.empty(0, 3, dtype=torch.int32),
        bound=3,
    )
    y, weight, ledger = torch.randn(5, 8, dtype=torch.bfloat16), torch.rand(3, 2), Ledger()
    with tilesieve.observe(ledger), ledger.phase("decode"):
        for _ in range(2):
            tilesieve.combine(y, groups, weight)
    (row,) = ledger.rows()
    assert (row.op, row.stage, row.phase, row.calls) == ("combine", "combine", "decode", 2)
    # By hand: 4 rows of 8, a product and a sum each; y 4 rows, out 3 rows, the index and the weights.
    assert row.cost.flops == 2 * (2 * 4 * 8)
    assert row.cost.bytes_min == 2 * (4 * 8 * 2 + 3 * 8 * 2 + 4 * (2 * 5 + 4) + 4 * 3 * 2)
    assert row.seconds > 0


def test_a_real_kv_append_counts_the_rows_that_are_written():
    cache = KVCache(torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 3, 8), "kv_fp32.token")
    k, ledger = torch.randn(4, 3, 8), Ledger()
    with tilesieve.observe(ledger):
        tilesieve.kv_append(k, k, cache, torch.tensor([0, -1, 5, 99]))
    (row,) = ledger.rows()
    assert row.cost.bytes_min == 4 * 8 + 2 * 2 * (2 * 3 * 8 * 4)
