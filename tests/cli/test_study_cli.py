"""The study's other doors: a comparison, a trace, a report again; and what they refuse."""

import json
import shutil

import pytest

from tilesieve.cli import main as cli


@pytest.fixture(scope="module")
def studies(model_folder, text_file, tmp_path_factory):
    """Two finished studies that differ in the budget."""
    found = []
    for k in (8, 16):
        folder = tmp_path_factory.mktemp(f"k{k}")
        assert cli.main(["study", "--model", str(model_folder), "--text", str(text_file), "--tokens", "128",
                         "--steps", "4", "--budgets", "8", "--k", str(k), "--out", str(folder)]) == 0  # fmt: skip
        found.append(folder)
    return found


def test_the_terminal_has_the_ladder_and_the_findings(studies, model_folder, text_file, capsys):
    assert cli.main(["study", "--model", str(model_folder), "--text", str(text_file), "--tokens", "128", "--steps", "4",
                     "--budgets", "8", "--k", "16", "--out", str(studies[1])]) == 0  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    study = json.loads((studies[1] / "study.json").read_text())
    for rung in study["sections"]["ladder"]["rungs"]:
        assert rung["label"] in shown and f"{1e3 * rung['own']:+.1f}" in shown
    fired = [finding for finding in study["findings"] if finding["fired"]]
    assert fired and all(finding["title"] in shown for finding in fired)
    assert f"{len(fired)} of" in shown
    assert study["meta"]["command"].startswith("tilesieve ")


def test_compare(studies, tmp_path, capsys):
    a, b = studies
    assert cli.main(["study", "--compare", str(a), str(b / "study.json"), "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    first, second = (json.loads((folder / "study.json").read_text()) for folder in studies)
    assert (tmp_path / "compare.html").stat().st_size > 10_000
    flat = " ".join(shown.split())
    assert "only in" in flat and "window 16" in flat  # that run has another name in each
    shared = next(run for run in first["runs"] if run["name"] == "exact-8")
    assert f"{shared['perplexity']:.3f}" in flat and shared["label"] in flat
    assert second["runs"][0]["perplexity"] == first["runs"][0]["perplexity"]


def test_compare_shows_both_where_labels_differ(studies, model_folder, text_file, tmp_path, capsys):
    """The same name for another way to score: the numbers of one must not stand under the words of the other."""
    other = tmp_path / "other"
    sizes = ["--tokens", "128", "--steps", "4", "--budgets", "8", "--k", "8", "--scoring", "pca", "--d-score", "4"]
    assert cli.main(["study", "--model", str(model_folder), "--text", str(text_file), *sizes, "--out", str(other)]) == 0
    capsys.readouterr()
    assert cli.main(["study", "--compare", str(studies[0]), str(other), "--out", str(tmp_path)]) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert "slow pairs d8 int8 + ends 8 → pca d4 int8 + ends 8" in flat


def test_a_trace_of_its_own(studies, tmp_path, capsys):
    trace = studies[1] / "trace-exact-16.jsonl"
    out = tmp_path / "out"
    # The plan's k is not among its budgets: the low-rank run is the one that was recorded.
    trace = trace if trace.exists() else studies[1] / "trace-lowrank-16.jsonl"
    assert cli.main(["study", "--trace", str(trace), "--out", str(out)]) == 0
    study = json.loads((out / "study.json").read_text())
    assert study["meta"]["trace"] == trace.name and study["timeline"] and study["runs"] == []
    assert "symptoms" in capsys.readouterr().out and (out / "report.html").exists()


def test_report_again(studies, tmp_path):
    folder = shutil.copytree(studies[0], tmp_path / "again")
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert cli.main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["study", "--trace", "t.jsonl", "--compare", "a", "b"], "--trace came with --compare"),
        (["study", "--trace", "t.jsonl", "--model", "m"], "--trace came with --model; allowed: --out alone"),
        (["study", "--compare", "a", "b", "--full"], "--compare came with --full"),
        (["study", "--compare", "a", "b", "--k", "4"], "--compare came with --k"),
        (["study", "--trace", "none.jsonl"], "none.jsonl"),
        (["study", "--compare", "none", "none"], "study is none: no study.json there"),
        (["report", "none"], "study is none: no study.json there"),
    ],
)  # fmt: skip
def test_refusals(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"), ("[]", "no study"), ('{"meta": {}, "schema": 1}', "of schema 1; this version reads 2"),
        ('{"meta": {}, "schema": 2}', "runs is missing or damaged"),
        ('{"meta": {}, "schema": 2, "runs": [{"name": "a"}], "findings": [], "timeline": [], "sections": {}}',
         "runs[0] is missing or damaged"),
    ],
)  # fmt: skip
def test_bad_study_files(content, said, tmp_path, capsys):
    (tmp_path / "study.json").write_text(content)
    assert cli.main(["report", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
