"""Two studies on one page: true numbers, right differences, and what only one of them has."""

import json
from pathlib import Path
from typing import Any

import pytest
from report_checks import Reader, embedded, fetched, leaves, untrue
from report_sample import study as sample_study
from report_sections import trace
from test_report_page import HOSTILE, PARTIAL, poison

from tilesieve.report import write_compare
from tilesieve.report.compare import page


def other() -> dict[str, Any]:
    """The sample again, on another model, with other numbers, one run less and one rung less."""
    study = sample_study()
    study["meta"] |= {"model": "another/model", "versions": {**study["meta"]["versions"], "torch": "2.14.0"}}
    for run in study["runs"]:
        run |= {"perplexity": run["perplexity"] * 1.05, "delta": run["delta"] * 1.25, "mass_mean": 0.9}
    study["runs"].pop(2)
    study["runs"][-1] |= {"name": "all", "label": "all of it"}
    study["sections"]["ladder"]["rungs"].pop(3)
    for run in study["sections"]["retrieval"]["runs"]:
        for at, cell in enumerate(run["cells"]):
            cell |= {"right": cell["right"] - 0.01 * at, "logprob": cell["logprob"] + 0.1}
    study["findings"][0]["fired"], study["findings"][3]["fired"] = False, True
    return study


def test_every_cell_says_what_its_study_says() -> None:
    a, b = sample_study(), other()
    html = page(a, b)
    assert embedded(html) == {"a": a, "b": b} and untrue({"a": a, "b": b}, html) == []
    shown = Reader(html).numbers
    for side, study in (("a", a), ("b", b)):
        for at, run in enumerate(study["runs"]):
            for key in ("perplexity", "delta", "kl_mean", "mass_mean", "top1", "bytes_per_token"):
                assert shown["", f"{side}.runs.{at}.{key}"] == run[key]
        cells = [path for path, _ in leaves(study["sections"]["retrieval"]["runs"]) if path.endswith(".right")]
        assert len(cells) == 60 and all(("", f"{side}.sections.retrieval.runs.{path}") in shown for path in cells)
    assert fetched(html) == []


def test_what_only_one_has_is_said() -> None:
    html = page(sample_study(), other())
    assert "exact top-256" in html and html.count("only in A</span>") == 2 * 2 + 2 + 1 + 1
    cards = [attrs for _, attrs in Reader(html).tags if "data-only" in attrs]
    assert [(card["data-finding"], card["data-only"]) for card in cards] == [
        ("shared-set", "a"), ("retrieval-middle", "b"),
    ]  # fmt: skip
    text = "".join(Reader(html).shown)
    assert "5 runs are in both studies, 3 in one only." in text
    made = [json.loads(str(attrs["data-value"])) for _, attrs in Reader(html).tags if "data-meta" in attrs][:4]
    assert made == ["HuggingFaceTB/SmolLM2-135M", "another/model", "2.13.0", "2.14.0"]


def test_the_difference_is_b_less_a() -> None:
    a, b = sample_study(), other()
    figure = embedded(page(a, b), "study-choices")["plot-compare-right"][1]
    first, last = a["sections"]["retrieval"]["runs"][1]["cells"], b["sections"]["retrieval"]["runs"][1]["cells"]
    trace_ = figure["data"][0]
    assert trace_["z"][2][3] == last[11]["right"] - first[11]["right"] and trace_["zmin"] == -trace_["zmax"]
    assert "<td>+2.40</td>" in page(a, b).replace("−", "-"), "47.91 to 50.31"


def test_a_study_equals_itself() -> None:
    html = page(sample_study(), sample_study())
    assert "are the same." in html and "The same findings fired in both." in html and "only in" not in html


def test_other_lengths_are_not_subtracted() -> None:
    b = other()
    b["sections"]["retrieval"]["lengths"] = [512, 1024]
    html = page(sample_study(), b)
    assert "nothing to subtract" in html and "plot-compare-right" not in embedded(html, "study-figures")


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_studies_are_compared(name: str) -> None:
    for a, b in ((PARTIAL[name], sample_study(4, 2)), (sample_study(4, 2), PARTIAL[name])):
        html = page(a, b)
        assert html.count("<h1>") == 1


def test_hostile_words_stay_text(tmp_path: Path) -> None:
    a = sample_study(4, 2)
    plain = Reader(page(a, a))
    b = sample_study(4, 2)
    poison(b)
    b["meta"] |= {"model": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    for run in b["runs"]:
        run |= {"name": run["name"] + HOSTILE, "label": HOSTILE}
    read = Reader(write_compare(b, b, tmp_path / "compare.html").read_text())
    for tag in ("script", "img", "link"):
        assert sum(name == tag for name, _ in read.tags) == sum(name == tag for name, _ in plain.tags)
    assert "onerror" not in {name for _, attrs in read.tags for name in attrs}


def test_traces_are_compared() -> None:
    assert "no run in common" in page(trace(), trace())


def test_labels_that_differ_are_both_shown() -> None:
    """One name for two ways to score: no number stands under the words of the other study alone."""
    a, b = sample_study(), sample_study()
    old, new = "slow pairs d32 int8 + ends 64", "pca d4 fp8 + ends 64"
    for study, label in ((a, old), (b, new)):
        parts = study["sections"]
        for item in (study["runs"][4], parts["ladder"]["rungs"][3], parts["retrieval"]["runs"][1]):
            item["label"] = label
    b["runs"][4]["delta"] = 0.9
    html = page(a, b)
    said = f"{old} → {new}"
    rows = html.count(f'<th scope="row">{said}</th>')
    assert rows == 2 + 1 + 1 + 1, "two tables of runs, that of the bars, rungs, and theirs"
    assert f"{said} changes most from A to B" in html and f"selected>{said}</option>" in html
    for plot in ("plot-compare-delta", "plot-compare-ladder"):
        ticks = embedded(html, "study-figures")[plot]["layout"]["yaxis"]["ticktext"]
        assert "slow pairs d32 int8<br>+ ends 64 →<br>pca d4 fp8 + ends 64 " in ticks
    assert old not in Reader(html).shown and new not in Reader(html).shown


def test_sizes_that_differ_are_said() -> None:
    a, b = sample_study(), sample_study()
    assert "differ:" not in page(a, b)
    b["sections"]["ladder"] |= {"k": 17, "tokens": 512}
    b["sections"]["retrieval"]["k"] = 17
    assert "The ladders differ: A k = 256 over 4,096 tokens, B k = 17 over 512 tokens." in page(a, b)
    assert "The budgets differ: A k = 256, B k = 17." in page(a, b)
