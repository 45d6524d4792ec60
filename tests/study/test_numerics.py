"""Which maximum a softmax subtracts: what rounding allows, where it breaks, and the section on a tiny model."""

import math

import pytest
import torch

from tilesieve.hf.load import Checkpoint
from tilesieve.hf.session import Seen
from tilesieve.study import numerics as section
from tilesieve.study.bench import Bench
from tilesieve.study.plan import Plan
from tilesieve.study.run import encode
from tilesieve.study.store import Store
from tilesieve.study.texts import read_text
from tilesieve.types import Selection

TOKENS = 160


def bench_of(folder, text, **plan):
    plan = Plan(folder, text, tokens=TOKENS, steps=2, budgets=(16,), budget=16, **plan)
    checkpoint = Checkpoint.open(folder)
    return Bench(plan, checkpoint, encode(checkpoint.tokenizer, read_text(text), plan, text), lambda *_: None)


def exactly(scores, value):
    return torch.softmax(scores.double(), -1) @ value.double()


def test_softmax_by_hand_whatever_is_subtracted():
    """Weights 1 and 3 over values 0 and 1: 0.75."""
    scores, value = torch.tensor([[[0.0, math.log(3), -torch.inf]]]), torch.tensor([[[0.0], [1.0], [9.0]]])
    for shift in (0.0, 1.0, 50.0, 80.0):
        found = section.softmax_over(scores, torch.full((1, 1, 1), shift), value)
        assert float(found) == pytest.approx(0.75, rel=1e-5)


def test_exp_is_as_good_as_the_bound_takes_it_to_be():
    x = torch.linspace(-87, 0, 400_001)
    exact = torch.exp(x.double())
    units = float(((torch.exp(x).double() - exact).abs() / exact).max()) / section.UNIT
    assert units < section.EXP_UNITS


@pytest.mark.parametrize("gap", [0.0, 3.0, 30.0, 70.0])
def test_the_bound_holds_of_each_softmax(gap):
    """Against fp64, of random scores; and it is no more than a thousand times what happens."""
    scores = torch.randn(3, 50, 40) * 4
    scores = scores.masked_fill(torch.rand(3, 50, 40) < 0.3, -torch.inf)
    value = torch.randn(3, 40, 8)
    shift = scores.amax(-1, keepdim=True) + gap
    off = (section.softmax_over(scores, shift, value).double() - exactly(scores, value)).abs()
    allowed = section.bound(scores, shift, value).double()
    assert bool((off <= allowed).all())
    assert float((off / allowed).max()) > 1e-3


def test_where_it_breaks():
    """All weights are zero once e^-gap is below half the smallest subnormal, 2^-150: at 103.97 nats; flushed to zero,
    below the smallest normal number, 2^-126: at 87.34. Before that weights lose digits."""
    found = section.breaking()
    assert 85.0 < found["breaks_at"] < found["nothing_at"]
    assert found["nothing_at"] == math.ceil(2 * 150 * math.log(2)) / 2 == 104.0
    if torch.set_flush_denormal(True):
        try:
            flushed = section.breaking()
        finally:
            torch.set_flush_denormal(False)
        assert flushed["nothing_at"] == math.ceil(2 * 126 * math.log(2)) / 2 == 87.5
        assert flushed["breaks_at"] < found["breaks_at"]


def test_rows_are_compared_with_what_they_selected():
    """One head, two rows at 1 and 2. Row 2 leaves out position 0, which is 5 nats above: that gap is found."""
    key = torch.tensor([[[5.0], [0.0], [0.0]]])
    value = torch.tensor([[[1.0], [2.0], [4.0]]])
    index = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    seen = Seen(0, 1, torch.ones(2, 1, 1), key, value, 1.0, (Selection(index, torch.tensor([2, 2]), None, "position"),))
    compared = section.Compared()
    section.compare(compared, seen)
    assert compared.largest_gap == 5.0 and compared.rows == 2 and compared.worst_share < 1.0


def test_the_default_section_is_one_short_pass(model_folder, text_file, tmp_path):
    store = Store(tmp_path, {})
    bench = bench_of(model_folder, text_file)
    found = section.numerics(bench, store)
    top = found["global_max"]
    assert top["rows"] == 3 * 4 * TOKENS and top["layers"] == [0, 1, 2] and found["unselected"] == []
    assert top["worst_share"] < 1.0 and top["largest_difference"] < top["rounding"]
    assert top["largest_gap"] > 0.0  # reduced scores miss the best somewhere, else nothing was compared
    assert not bench._dense
    again = bench_of(model_folder, text_file)
    assert section.numerics(again, store) == found and again._model is None


def test_in_full_the_unselected_mass_is_tried(model_folder, text_file, tmp_path):
    bench = bench_of(model_folder, text_file, full=True)
    rows = section.numerics(bench, Store(tmp_path, {}))["unselected"]
    assert [row["name"] for row in rows] == ["exact", "low-rank"]
    exact = section.compared(bench.plan, 16, bench)["exact"]
    ignored = bench.trial(exact, TOKENS, "again").numbers()
    assert rows[0]["perplexity_ignored"] == ignored["perplexity"] and rows[0]["kl_mean_ignored"] == ignored["kl_mean"]
    assert all(row["perplexity"] != row["perplexity_ignored"] for row in rows)


def test_per_head_selection_keeps_the_maximum(model_folder, text_file):
    """Exact selection by head holds the best score: both maxima are one, and so are the outputs, to the bit."""
    from dataclasses import replace

    bench = bench_of(model_folder, text_file)
    exact = section.compared(bench.plan, 16, bench)["exact"]
    found = section.global_max(bench, TOKENS, replace(exact, share="q_head"))
    assert found["largest_gap"] == 0.0 and found["largest_difference"] == 0.0
