"""The study on a tiny model: its numbers against direct computation, and that nothing done is lost."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from tilesieve.study.plan import Plan
from tilesieve.study.run import run_study
from tilesieve.study.trace import read_trace

T = 200


@pytest.fixture(scope="module")
def plan(model_folder, text_file):
    return Plan(model_folder, text_file, tokens=T, steps=6, budgets=(8, 16, 32), budget=16,
                scoring="pca", score_format="score_int8")  # fmt: skip


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    return run_study(plan, out), out


def runs(study):
    return {run["name"]: run for run in study["runs"]}


def test_dense_perplexity_is_transformers_own(finished, plan, model_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    study, _ = finished
    ids = AutoTokenizer.from_pretrained(model_folder)(plan.text.read_text(), return_tensors="pt").input_ids[:, :T]
    model = AutoModelForCausalLM.from_pretrained(model_folder).eval()
    with torch.no_grad():
        logits = model(ids).logits[0, T // 2 - 1 : -1]
    nll = torch.nn.functional.cross_entropy(logits.double(), ids[0, T // 2 :]).item()
    assert runs(study)["dense"]["nll"] == pytest.approx(nll, rel=1e-6)
    assert runs(study)["dense"]["perplexity"] == pytest.approx(math.exp(nll), rel=1e-6)


def test_everything_selected_is_dense_to_six_digits(finished):
    dense, full = (runs(finished[0])[name] for name in ("dense", "full"))
    assert full["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-6)
    assert full["kl_worst"] < 1e-6 and full["mass_worst"] == pytest.approx(1.0, abs=1e-5)
    assert full["overlap"] == 1.0 and full["continuation"]["diverges_at"] is None


def test_the_sweep_is_dense_and_six(finished):
    study, _ = finished
    assert [run["family"] for run in study["runs"]] == ["dense", "exact", "exact", "exact", "lowrank", "window", "full"]
    for run in study["runs"]:
        assert len(run["continuation"]["tokens"]) == 6
        assert {"pass", "decode"} <= {s["phase"] for s in run["stages"]} <= {"pass", "prompt", "decode"}
        assert {s["calls"] for s in run["stages"] if s["phase"] == "decode"} == {3 * 5}


def test_more_budget_keeps_more_mass_and_exact_overlaps_itself(finished):
    found = runs(finished[0])
    masses = [found[f"exact-{k}"]["mass_mean"] for k in (8, 16, 32)]
    assert masses == sorted(masses) and 0.2 < masses[0] < masses[2] < 1
    # The same sum of the same weights, taken in another order: a tie may fall otherwise.
    assert all(found[f"exact-{k}"]["overlap"] > 0.999 for k in (8, 16, 32))
    assert found["window-16"]["overlap"] < 0.6
    assert found["exact-16"]["kl_mean"] < found["window-16"]["kl_mean"]


def test_bytes_per_token_follow_the_formats(finished):
    """3 layers, 2 kv heads of 16, fp32: dense reads 128 + 128 bytes a position, layer and head pair."""
    found = runs(finished[0])
    dense = found["dense"]["bytes_per_token"]
    seen = sum(range(T + 1, T + 6)) // 5  # positions a step sees, mean of five
    assert dense == pytest.approx(3 * seen * 2 * 16 * 4 * 2, rel=0.02)
    assert found["window-16"]["bytes_per_token"] < dense / 5
    assert all(run["bytes_dense"] == dense for run in found.values())


def test_the_files_say_the_same(finished):
    study, out = finished
    assert json.loads((out / "study.json").read_text()) == study
    rows = [json.loads(line) for line in (out / "study.jsonl").read_text().splitlines()]
    assert [row["type"] for row in rows if row["type"] != "part"] == ["study", *["run"] * 7]


def test_timeline_cells_are_the_traced_selections(finished):
    """T is below the number of cells, so that each cell is one position; the trace file says the same."""
    study, out = finished
    looks = [look for look in study["timeline"] if not look["run"].startswith("ladder")]
    assert {look["run"] for look in looks} == {"exact-16", "lowrank-16"} and {look["layer"] for look in looks} == {
        0,
        1,
        2,
    }
    for look in looks:
        trace = read_trace(out / f"trace-{look['run']}.jsonl")
        assert (look["bin"], look["length"], look["head"]) == (1, T, -1) and len(look["queries"]) > 20
        for query, cells, count in zip(look["queries"], look["cells"], look["count"], strict=True):
            bits = f"{int(cells, 16):0{4 * len(cells)}b}"
            positions = [n for n, bit in enumerate(bits) if bit == "1"]
            assert positions == trace.picks[look["layer"], -1][query].tolist()
            assert len(positions) == count == min(16, query + 1) and positions[-1] == query


def test_more_sections_keep_the_sweep(finished, plan, monkeypatch):
    """--full in the same folder runs what is missing and nothing else."""
    study, out = finished
    said = []
    monkeypatch.setattr("tilesieve.study.sections.SECTIONS", ())
    again = run_study(replace(plan, full=True), out, tell=lambda what, share: said.append(what))
    assert said == ["reading"] and again["runs"] == study["runs"]


def test_a_killed_study_resumes(plan, tmp_path):
    """Kill at the third run, in the middle of a row: what was finished is kept, the rest is run."""

    class Killed(Exception):
        pass

    said = []

    def tell(what, share):
        said.append(what)
        if what.startswith("shared top-k 32"):
            raise Killed

    with pytest.raises(Killed):
        run_study(plan, tmp_path, tell=tell)
    path = tmp_path / "study.jsonl"
    before = path.read_text()
    assert before.count("\n") == 4  # the study, dense, two runs
    path.write_text(before + '{"type": "run", "run": {"na')
    again = []
    study = run_study(plan, tmp_path, tell=lambda what, share: again.append(what))
    assert path.read_text().startswith(before)
    assert not any(what.startswith(("shared top-k 8", "shared top-k 16")) for what in again)
    assert len(study["runs"]) == 7
    third = []
    run_study(plan, tmp_path, tell=lambda what, share: third.append(what))
    assert third == ["reading"]


def test_a_damaged_line_costs_only_itself(finished, plan, tmp_path):
    """The disk ate a row in the middle: the rows after it stand for themselves."""
    study, out = finished
    again = shutil.copytree(out, tmp_path / "again")
    path = again / "study.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"exact-16"' in line)
    lines[at] = lines[at][:200] + "\n"
    path.write_text("".join(lines))
    said = []
    found = run_study(plan, again, tell=lambda what, share: said.append(what))
    assert {what for what in said if what.startswith(("shared", "slow", "4 sinks"))} == {"shared top-k 16"}
    assert [run["perplexity"] for run in found["runs"]] == [run["perplexity"] for run in study["runs"]]


def test_asking_for_less_takes_nothing_away(model_folder, text_file, tmp_path):
    small = Plan(model_folder, text_file, tokens=64, steps=1, budgets=(8,), budget=8)
    full = run_study(replace(small, full=True), tmp_path)
    said = []
    again = run_study(small, tmp_path, tell=lambda what, share: said.append(what))
    assert said == ["reading"] and again["sections"] == full["sections"] and "latent" in again["sections"]


def test_a_refused_study_leaves_no_folder(plan, tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        run_study(replace(plan, text=tmp_path / "none.txt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_of_another_model_do_not_count(plan, tmp_path, model_folder):
    """Same names, same sizes, other numbers: the finished rows are another study's."""

    from safetensors.torch import load_file, save_file

    small = replace(plan, tokens=64, budgets=(8,), budget=8, steps=1)
    twin = shutil.copytree(model_folder, tmp_path / "twin")
    first = run_study(small, tmp_path / "out")
    tensors = load_file(twin / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.5
    save_file(tensors, twin / "model.safetensors", metadata={"format": "pt"})
    second = run_study(replace(small, model=twin), tmp_path / "out")
    assert second["runs"][0]["perplexity"] != first["runs"][0]["perplexity"]
    assert (tmp_path / "out" / "study.1.jsonl").exists()


def test_another_plan_does_not_overwrite(plan, tmp_path, model_folder, text_file):
    run_study(plan, tmp_path)
    rows = (tmp_path / "study.jsonl").read_text()
    small = Plan(model_folder, text_file, tokens=64, steps=1, budgets=(8,), budget=8)
    study = run_study(small, tmp_path)
    assert [r["name"] for r in study["runs"]] == ["dense", "exact-8", "lowrank-8", "window-8", "full"]
    assert (tmp_path / "study.1.jsonl").read_text() == rows
