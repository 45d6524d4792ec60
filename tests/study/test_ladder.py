"""The ladder's rungs: what each adds, and that their losses add up."""

import math

import pytest

from tilesieve.hf.shape import Shape
from tilesieve.study.ladder import rungs
from tilesieve.study.plan import Plan
from tilesieve.study.run import run_study


def steps(**more):
    return {r.name: r for r in rungs(Plan(tokens=4096, budget=256, **more), Shape("m", 2, 8, 2, 64, None, 64), 1024)}


def test_each_rung_differs_from_the_one_before_in_one_thing():
    found = steps()
    assert list(found) == ["dense", "per-head", "shared", "low-rank", "narrow", "other", "approximate", "reuse"]
    order = [r for r in found.values() if not r.side and r.policy is not None]
    assert {r.policy.k for r in order} == {64} and {(r.policy.first, r.policy.last) for r in order} == {(4, 8)}
    changed = []
    for a, b in zip(order, order[1:], strict=False):
        changed.append({f for f in vars(a.policy) if getattr(a.policy, f) != getattr(b.policy, f)})
    assert changed == [{"share"}, {"scoring"}, {"scoring"}, {"local_k", "block"}, {"reselect"}]
    assert found["narrow"].policy.scoring.format == "score_int8" and found["other"].policy.scoring.format == "score_fp8"
    assert found["approximate"].policy.local_k == 16 and found["approximate"].policy.block == 128


def test_by_itself_is_exact_selection_with_that_stage_only():
    found = steps()
    shared = found["shared"].policy
    for name, fields in (("narrow", {"scoring"}), ("approximate", {"local_k", "block"}), ("reuse", {"reselect"})):
        alone = found[name].by_itself
        assert {f for f in vars(shared) if getattr(shared, f) != getattr(alone, f)} == fields
    assert found["narrow"].by_itself.scoring.columns == 64  # all dimensions, only narrower


def test_a_fp8_plan_swaps_the_side_rung():
    found = steps(score_format="score_fp8")
    assert found["narrow"].policy.scoring.format == "score_fp8" and found["other"].policy.scoring.format == "score_int8"


@pytest.fixture(scope="module")
def found(model_folder, text_file, tmp_path_factory):
    plan = Plan(model_folder, text_file, tokens=480, steps=4, budgets=(32,), budget=32)
    return run_study(plan, tmp_path_factory.mktemp("ladder"))


def test_losses_add_up(found):
    """From the nll of each rung alone: own losses telescope, and the interaction is what the isolated ones lack."""
    ladder = found["sections"]["ladder"]
    chain = [r for r in ladder["rungs"] if not r["side"]]
    total = chain[-1]["nll"] - chain[0]["nll"]
    assert ladder["total"] == pytest.approx(total, abs=1e-12)
    assert sum(r["own"] for r in chain) == pytest.approx(total, abs=1e-12)
    assert sum(r["alone"] for r in chain) + ladder["interaction"] == pytest.approx(total, abs=1e-12)
    for before, rung in zip(chain, chain[1:], strict=False):
        assert rung["own"] == pytest.approx(rung["nll"] - before["nll"], abs=1e-12)
        assert rung["perplexity"] == pytest.approx(math.exp(rung["nll"]), rel=1e-9)
    for rung in chain:
        if rung["name"] in ("narrow", "approximate", "reuse"):
            assert [layer["layer"] for layer in rung["alone_layers"]] == [0, 1, 2]
            assert all(0 < layer["overlap"] <= 1 for layer in rung["alone_layers"])
    side = next(r for r in ladder["rungs"] if r["side"])
    lowrank = next(r for r in ladder["rungs"] if r["name"] == "low-rank")
    assert side["own"] == pytest.approx(side["nll"] - lowrank["nll"], abs=1e-12) and side["alone"] is None


def test_rungs_carry_what_a_hunter_needs(found):
    ladder = {r["name"]: r for r in found["sections"]["ladder"]["rungs"]}
    assert ladder["dense"]["own"] == 0.0 and ladder["dense"]["kl_worst"] == 0.0 and ladder["dense"]["top1"] == 1.0
    for name, rung in ladder.items():
        if name != "dense":
            assert 0 < rung["mass_worst"] <= rung["mass_mean"] < 1 and 0 < rung["top1"] <= 1
            assert 0 <= rung["kl_mean"] <= rung["kl_worst"] and 60 <= rung["worst_at"] < 120
            assert [layer["layer"] for layer in rung["layers"]] == [0, 1, 2]
            for layer in rung["layers"]:
                assert len(layer["heads"]) == 4
                assert sum(layer["heads"]) / 4 == pytest.approx(layer["mass_mean"], abs=1e-6)
    assert ladder["per-head"]["mass_mean"] > ladder["shared"]["mass_mean"] > ladder["low-rank"]["mass_mean"]
    assert ladder["reuse"]["rate"] == 0.25 and ladder["approximate"]["rate"] == 1.0
    assert ladder["reuse"]["bytes_per_token"] < ladder["approximate"]["bytes_per_token"]
    assert ladder["narrow"]["bytes_per_token"] < ladder["low-rank"]["bytes_per_token"]


def test_heads_have_timelines_of_their_own(found):
    looks = {(look["layer"], look["head"]) for look in found["timeline"] if look["run"] == "ladder per-head"}
    assert looks == {(layer, head) for layer in range(3) for head in range(4)}
