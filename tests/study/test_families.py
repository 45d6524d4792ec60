"""Other families: one kv head, layers with a window of their own, fused projections, learned positions."""

import shutil

import pytest
from models import tiny

from tilesieve.study.plan import Plan
from tilesieve.study.run import run_study

# Layers that stay dense because the model limits them to a window.
WINDOWED = {"gemma3": [0, 1], "gpt2": [], "phi3": [], "llama_mqa": []}


@pytest.mark.parametrize("family", sorted(WINDOWED))
def test_every_section_runs(family, model_folder, text_file, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    tiny(family).save_pretrained(folder)
    plan = Plan(folder, text_file, tokens=128, steps=4, budgets=(16,), budget=16, full=True)
    study = run_study(plan, tmp_path / "out")
    assert study["meta"]["dense_layers"] == WINDOWED[family]
    selecting = [layer for layer in range(3) if layer not in WINDOWED[family]]
    for run in study["runs"][1:]:
        assert [layer["layer"] for layer in run["layers"]] == selecting
    assert {look["layer"] for look in study["timeline"]} == set(selecting)
    assert study["runs"][-1]["perplexity"] == pytest.approx(study["runs"][0]["perplexity"], rel=1e-6)
    sections = study["sections"]
    assert [row["layer"] for row in sections["sensitivity"]["layers"]] == selecting
    assert sections["ladder"]["rungs"][-1]["rate"] == 0.25
    assert all(section for section in sections.values())
