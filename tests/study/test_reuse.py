"""The section on keeping sets: rates and thresholds by hand and as the layers decide, then a tiny model."""

import math
import shutil

import pytest
import torch

from tilesieve.hf.load import Checkpoint
from tilesieve.layers.reuse import sources, turns
from tilesieve.policies import Cosine, Every, Policy
from tilesieve.study.bench import Bench
from tilesieve.study.plan import Plan
from tilesieve.study.reuse import STEPS, Turned, matching, rate_of, reuse, selected
from tilesieve.study.run import encode
from tilesieve.study.store import Store
from tilesieve.study.texts import read_text

T = 160


def test_selected_by_hand():
    cosines = [0.99, 0.5, 0.92, 0.96]
    assert selected(cosines, Every(1)) == 5 and selected(cosines, Every(2)) == 3 and selected(cosines, Every(4)) == 2
    # The first row, and the one that turned.
    assert selected(cosines, Cosine(0.9, 0.9)) == 2
    # Between the thresholds: as the row before, which selected; 0.96 keeps.
    assert selected(cosines, Cosine(0.95, 0.9)) == 3
    assert selected(cosines, Cosine(-1.0, -1.0, longest=2)) == 3


@pytest.mark.parametrize("rule", [Every(1), Every(3), Cosine(0.8, 0.8), Cosine(0.9, 0.4), Cosine(-1, -1, longest=7)])
def test_selected_is_what_rows_do(rule):
    steps = torch.randn(100, 2, 8) * 0.5
    q = steps.cumsum(0)
    source = sources(q, 0, Policy(k=4, reselect=rule))
    assert selected(turns(q).tolist(), rule) == len(set(source)) > 1


def test_a_threshold_by_hand():
    """Ten turns of 0.0, 0.1, ... 0.9 and the first row: four of eleven select where the threshold is over 0.2."""
    cosines = [[n / 10 for n in range(10)]]
    rule = matching(cosines, 4 / 11)
    assert 0.2 < rule.reuse <= 0.3 and rule.reuse == rule.reselect
    assert rate_of(cosines, rule) == 4 / 11


@pytest.mark.parametrize("steps", STEPS)
def test_rates_are_matched(steps):
    draw = torch.Generator().manual_seed(0)
    cosines = [torch.rand(1000, generator=draw).tolist() for _ in range(3)]
    rate = rate_of(cosines, Every(steps))
    assert rate == math.ceil(1001 / steps) / 1001
    assert rate_of(cosines, matching(cosines, rate)) == pytest.approx(rate, abs=2e-3)


@pytest.fixture(scope="module")
def bench(model_folder, text_file):
    plan = Plan(model_folder, text_file, tokens=T, steps=2, budgets=(12,), budget=12, scoring="pca", full=True)
    checkpoint = Checkpoint.open(model_folder)
    ids = encode(checkpoint.tokenizer, read_text(text_file), plan, text_file)
    return Bench(plan, checkpoint, ids, lambda what, share: None)


@pytest.fixture(scope="module")
def section(bench, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reuse")
    return reuse(bench, Store(folder, {"a": 1})), folder


def test_the_section(section):
    found, _ = section
    assert (found["k"], found["tokens"], found["scored"]) == (12, T, [T // 2, T])
    runs = {run["name"]: run for run in found["runs"]}
    pairs = [f"{rule}-{n}" for n in STEPS for rule in ("every", "cosine")]
    assert list(runs) == ["always", *pairs, "cosine-named"]
    assert runs["always"]["rate"] == 1.0 and runs["always"]["rule"] == "always"
    for n in STEPS:
        every, cosine = runs[f"every-{n}"], runs[f"cosine-{n}"]
        assert every["rate"] == pytest.approx(math.ceil(T / n) / T) and every["n"] == n
        # Calibrated on dense queries, run on its own, which selection has changed.
        assert cosine["rate"] == pytest.approx(every["rate"], rel=0.25)
        assert cosine["matches"] == every["name"] and cosine["threshold"] == cosine["reselect"]
    assert runs["cosine-named"]["threshold"] == 0.95 and runs["cosine-named"]["reselect"] == 0.90
    assert all(math.isfinite(run["kl_mean"]) and run["perplexity"] > 1 for run in found["runs"])


def test_selecting_always_is_the_sweeps_run(section, bench):
    always = section[0]["runs"][0]
    want = bench.trial(Policy(k=12), T, "exact").numbers()
    assert all(always[key] == want[key] for key in ("perplexity", "kl_mean", "kl_worst", "mass_mean", "delta"))


def test_turn_is_of_the_models_own_queries(section, bench):
    turned = Turned(bench, T)
    first = turned.by_layer()[0]
    assert [row["layer"] for row in section[0]["turn"]] == [0, 1, 2] and len(first) == T - 1
    ordered = sorted(first.tolist())
    assert section[0]["turn"][0]["median"] == ordered[(T - 2) // 2]
    assert section[0]["turn"][0]["p10"] < section[0]["turn"][0]["median"] <= 1.0


def test_layers_that_are_windows_have_no_turn(bench, model_folder, tmp_path):
    """Two of three layers of this model see 16 positions and never select."""
    from models import tiny

    folder = shutil.copytree(model_folder, tmp_path / "model")
    tiny("gemma3").save_pretrained(folder)
    windows = Bench(bench.plan, Checkpoint.open(folder), bench.ids, bench.tell)
    assert [row["layer"] for row in Turned(windows, 64).bands()] == [2]


def test_resumed_without_a_model(section, bench):
    found, folder = section
    fresh = Bench(bench.plan, bench.checkpoint, bench.ids, bench.tell)
    assert reuse(fresh, Store(folder, {"a": 1})) == found
    assert fresh._model is None


def test_k_shrinks_with_the_text(model_folder, text_file, monkeypatch, tmp_path):
    """The same share of positions as the plan's: 2048 of 8192 tokens get a quarter of the budget, 8 at least."""
    asked = []

    def part(self, section, name, settings, make):
        asked.append(settings)
        return []

    monkeypatch.setattr(Store, "part", part)
    for budget, k in ((256, 64), (16, 8), (6, 6)):
        plan = Plan(model_folder, text_file, tokens=8192, budgets=(budget,), budget=budget, scoring="pca")
        found = reuse(Bench(plan, Checkpoint.open(model_folder), torch.zeros(1), print), Store(tmp_path, {}))
        assert (found["tokens"], found["k"]) == (2048, k)
        assert asked[-1] == {"tokens": 2048, "k": k}
