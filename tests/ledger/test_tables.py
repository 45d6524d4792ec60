"""The tables name their units, dtypes, terms, chip and kind of peaks, and show the rows' numbers."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tilesieve.cost import Cost
from tilesieve.ledger import Row, total
from tilesieve.ledger.chips import H200, H200_MEASURED
from tilesieve.ledger.models import SMOLLM2_135M
from tilesieve.ledger.step import Step, decode_step
from tilesieve.ledger.tables import number, rows_table, step_table


def shown(table):
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2.304e-06, "0.000002304"), (1026.3, "1026"), (94371840 / 1e6, "94.37"), (123456.0, "123500"), (1, "1")],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize("chip", [H200, H200_MEASURED])
@pytest.mark.parametrize("k", [None, 256])
def test_a_step_says_what_it_counts(chip, k):
    step = Step(4096, k=k, cache="kv_bf16", score_format="score_int8")
    rows = decode_step(SMOLLM2_135M, step)
    text = " ".join(shown(step_table(SMOLLM2_135M, step, rows, chip, graph=False)).split())
    for said in ("MB = 1e6 B", "GFLOP = 1e9", "weights and activations bf16", "keys and values kv_bf16", "bytes_min",
                 "Not counted: attention's softmax", f"Chip: {chip.name}, peaks {chip.kind}", chip.source,
                 "5 us a launch (eager, assumed)", "4096 positions"):  # fmt: skip
        assert said in text, said
    assert ("score_int8" in text) == (k is not None)
    assert all(row.op in text for row in rows)


def test_a_step_shows_its_numbers():
    step = Step(4096)
    rows = decode_step(SMOLLM2_135M, step)
    lines = shown(step_table(SMOLLM2_135M, step, rows, H200)).splitlines()
    cells = {line.split("│")[2].strip(): [c.strip() for c in line.split("│")] for line in lines if "│" in line}
    assert cells["gqa_decode"][3:6] == ["30", "0.2831", "94.48"]
    assert cells["total"][5] == number(total(rows).bytes_min / 1e6)
    assert cells["gqa_decode"][-2] == "launch"
    assert cells["total"][-3] == "100.0%"


def test_observed_rows():
    row = Row("combine", "combine", 3, Cost(2 * 10**9, 5 * 10**6), 0.5, "decode")
    text = shown(rows_table([row, replace(row, seconds=0.0, phase="prefill")]))
    assert [c.strip() for c in text.splitlines()[4].split("│")[1:-1]] == [
        "decode", "combine", "combine", "3", "0.5000", "2", "5", "0.01",
    ]  # fmt: skip
    assert "MB = 1e6 B" in text
