"""Prices of heads from one pass: against runs in which only that head, or layer, is sparse."""

import pytest
import torch

from tilesieve.hf.load import Checkpoint
from tilesieve.policies import Policy
from tilesieve.study.bench import Bench
from tilesieve.study.plan import Plan
from tilesieve.study.run import encode
from tilesieve.study.sensitivity import drawn, measured, priced, sensitivity
from tilesieve.study.store import Store
from tilesieve.study.texts import read_text

T = 160


def bench_of(folder, text_file, k=16):
    plan = Plan(folder, text_file, tokens=T, steps=4, budgets=(k,), budget=k, full=True)
    checkpoint = Checkpoint.open(folder)
    return Bench(plan, checkpoint, encode(checkpoint.tokenizer, read_text(text_file), plan, text_file), lambda *_: None)


@pytest.fixture(scope="module")
def bench(model_folder, text_file):
    return bench_of(model_folder, text_file)


def test_nothing_lost_costs_nothing(bench):
    """With everything selected the two outputs differ by rounding, and so does the price."""
    costs = priced(bench, Policy(k=T), T)
    assert [row["layer"] for row in costs] == [0, 1, 2] and {len(row["heads"]) for row in costs} == {4}
    assert all(abs(cost) < 1e-6 for row in costs for cost in (row["cost"], *row["heads"]))


def test_prices_follow_runs_of_one_head(bench):
    """Right in rank and roughly in size where a head's change is small."""
    policy = Policy(k=48)
    costs = {row["layer"]: row["heads"] for row in priced(bench, policy, T)}
    want = {(layer, head): measured(bench, policy, T, layer, head) for layer in range(3) for head in range(4)}
    x = torch.tensor([costs[layer][head] for layer, head in want])
    y = torch.tensor(list(want.values()))
    assert torch.corrcoef(torch.stack([x, y]))[0, 1] > 0.9
    assert (x - y).abs().max() < 0.5 * y.abs().max()


def test_curvature_is_that_of_the_divergence():
    """Labels drawn from the model: the mean square of the gradient's move is twice KL to second order."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64)
    change = torch.tensor([0.02, -0.01, 0.03, 0.0], dtype=torch.float64)
    p = logits.softmax(0)
    labels = drawn(logits.float().expand(40000, 4))
    moves = change[labels] - (p * change).sum()  # gradient of log p(label) times the change
    kl = (p * (p.log() - (logits + change).log_softmax(0))).sum()
    assert moves.square().mean().item() / 2 == pytest.approx(kl.item(), rel=0.05)  # 40000 draws: 1 % of scatter
    assert torch.equal(drawn(logits[None].float()), drawn(logits[None].float()))


def test_ranking_and_exemption(bench, tmp_path):
    found = sensitivity(bench, Store(tmp_path, {}))
    costs = [row["cost"] for row in found["ranked"]]
    assert costs == sorted(costs, reverse=True) and len(costs) == 12
    assert found["exempt"][0]["layers"] == [] and len(found["exempt"][1]["layers"]) == 1
    worst = max(found["layers"], key=lambda row: row["cost"])["layer"]
    assert found["exempt"][1]["layers"] == [worst]
    # A larger k costs less over all layers, and the section's own k is among those priced.
    totals = [sum(row["cost"] for row in entry["layers"]) for entry in found["by_k"]]
    assert [entry["k"] for entry in found["by_k"]] == [8, 16, 32, 64] and totals == sorted(totals, reverse=True)
    assert [row["cost"] for row in found["by_k"][1]["layers"]] == [row["cost"] for row in found["layers"]]
    # An exempted layer reads everything.
    assert found["exempt"][1]["bytes_per_token"] > found["exempt"][0]["bytes_per_token"]
    assert {row["head"] for row in found["checked"]} >= {-1}


def test_finished_sections_need_no_model(bench, tmp_path, model_folder, text_file):
    found = sensitivity(bench, Store(tmp_path, {}))
    again = bench_of(model_folder, text_file)
    again.checkpoint = None
    assert sensitivity(again, Store(tmp_path, {})) == found
