"""The main job on the real model, small: what must hold of it, and the time it may take."""

import json
import math
import os
import resource
import subprocess
import sys

import pytest
import torch

from tilesieve.hf.load import DEFAULT_PACKAGE
from tilesieve.study.texts import hamlet, read_text

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("quick")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "tilesieve", "study", "--quick", "--out", str(out)],
        capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Processor time over the cores, not time on the wall: what else the machine does is not the study's.
    seconds = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / (os.cpu_count() or 1)
    assert after.ru_maxrss < 6 * 2**20, f"{after.ru_maxrss} KiB at the peak; allowed: 6 GiB"
    return json.loads((out / "study.json").read_text()), out, done.stdout, seconds


def test_quick_is_quick(quick):
    assert quick[3] < 90


def test_dense_is_what_transformers_says(quick):
    """Its own attention on the same tokens: relative 1e-4 of perplexity."""
    import importlib.util
    from pathlib import Path

    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = Path(importlib.util.find_spec(DEFAULT_PACKAGE).origin).parent
    options = {"gguf_file": next(folder.glob("*.gguf")).name}
    ids = AutoTokenizer.from_pretrained(folder, **options)(read_text(hamlet()), return_tensors="pt").input_ids[:, :1024]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    with torch.no_grad():
        logits = model(ids, use_cache=False, logits_to_keep=513).logits[0, :-1]
    own = math.exp(torch.nn.functional.cross_entropy(logits, ids[0, 512:]).item())
    assert quick[0]["runs"][0]["perplexity"] == pytest.approx(own, rel=1e-4)


def test_what_must_hold(quick):
    study = quick[0]
    runs = {run["family"] + str(run["k"]): run for run in study["runs"]}
    dense, full = study["runs"][0], study["runs"][-1]
    assert [run["family"] for run in study["runs"]] == ["dense", "exact", "exact", "exact", "lowrank", "window", "full"]
    assert full["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-6)
    exact = [runs[f"exact{k}"] for k in (32, 64, 128)]
    assert [r["perplexity"] for r in exact] == sorted((r["perplexity"] for r in exact), reverse=True)
    # A good selector beats the static window at the same budget, and reads little more.
    assert runs["exact64"]["kl_mean"] < runs["lowrank64"]["kl_mean"] < runs["window64"]["kl_mean"]
    assert full["continuation"]["diverges_at"] is None


def test_the_terminal_shows_the_runs(quick):
    study, out, printed, _ = quick
    for run in study["runs"]:
        assert run["label"] in printed and f"{run['perplexity']:.3f}" in printed
    assert (out / "report.html").stat().st_size > 1_000_000
    assert (out / "perplexity-vs-budget.png").read_bytes()[:4] == b"\x89PNG"
