"""The page as text: the numbers, the escapes, what is missing, what is fetched."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_checks import Reader, embedded, fetched, numbers_of_study
from report_sample import study as sample_study

from tilesieve.report import write_report
from tilesieve.report.plots import DOTS
from tilesieve.report.style import CSS
from tilesieve.report.tidy import tidy
from tilesieve.report.timeline import thinned
from tilesieve.report.verdict import verdict

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"&'<!-- %{x} $x$"
LONE = "\ud800"  # half a character, which JSON can hold and UTF-8 cannot
NAN, INF = float("nan"), float("inf")


def only(keep: int, **changes: Any) -> dict[str, Any]:
    study = sample_study()
    return study | {"runs": study["runs"][:keep], **changes}


def drop(*keys: str) -> dict[str, Any]:
    """Every run without these keys: an older or a younger study."""
    study = sample_study()
    study["runs"] = [{key: value for key, value in run.items() if key not in keys} for run in study["runs"]]
    return study


def blank(**values: Any) -> dict[str, Any]:
    study = sample_study()
    return study | {"runs": [{**run, **values} for run in study["runs"]], "timeline": study["timeline"][:1]}


PARTIAL: dict[str, dict[str, Any]] = {
    "nothing": {},
    "meta": {"schema": 1, "meta": {"model": "m"}},
    "nulls": {"schema": None, "meta": None, "runs": None, "timeline": None},
    "no runs": only(0),
    "dense": only(1, timeline=[]),
    "no dense": {**sample_study(), "runs": sample_study()["runs"][1:]},
    "one nameless run": {"runs": [{}]},
    "a null run": {"runs": [None, sample_study()["runs"][1]]},
    "no timeline": {key: value for key, value in sample_study().items() if key != "timeline"},
    "empty timeline": {**sample_study(), "timeline": [{"run": "x", "layer": 0, "queries": [], "positions": []}]},
    "unknown run in timeline": {**sample_study(), "timeline": [{"run": "x", "queries": [5], "positions": [[-1, 2]]}]},
    "timeline of no picks": {**sample_study(), "timeline": [{"run": "x", "queries": [5, 6], "positions": [[], None]}]},
    "no layers": drop("layers"),
    "no stages": drop("stages"),
    "no continuation": blank(continuation=None),
    "no perplexity": drop("perplexity", "delta", "nll"),
    "no budget": drop("k"),
    "no bytes": drop("bytes_per_token", "bytes_dense"),
    "zero bytes": blank(bytes_per_token=0, bytes_dense=0, seconds=0),
    "not finite": blank(perplexity=INF, delta=NAN, kl_worst=-INF, mass_mean=NAN, bytes_per_token=NAN),
    "some not finite": only(3, meta={"tokens": NAN, "scored": [None, INF]}),
    "unknown family": blank(family="hisa <b>"),
    "empty layer": blank(layers=[{"layer": None}, {}]),
    "empty stage": blank(stages=[{"phase": "pass"}, {}]),
    "empty continuation": blank(continuation={}),
    "equal budgets": blank(family="exact", k=64),
}


def build(study: dict[str, Any], folder: Path) -> str:
    return write_report(study, folder / "study.html").read_text()


def test_every_number_is_in_a_cell_exactly(study: dict[str, Any], tmp_path: Path) -> None:
    shown, wanted = Reader(build(study, tmp_path)).numbers, numbers_of_study(study)
    assert len(wanted) > 800 and ("exact-256", "layers.3.mass_mean") in wanted
    assert shown == wanted


def test_a_changed_number_is_seen(study: dict[str, Any], tmp_path: Path) -> None:
    html = build(study, tmp_path)
    assert html.count('data-value="42.1185"') == 1
    broken = html.replace('data-value="42.1185"', 'data-value="42.1186"')
    assert Reader(broken).numbers != numbers_of_study(study)


def test_the_data_is_embedded_unchanged(study: dict[str, Any], tmp_path: Path) -> None:
    assert embedded(build(study, tmp_path)) == study


def test_the_study_is_not_changed(study: dict[str, Any], tmp_path: Path) -> None:
    before = copy.deepcopy(study)
    build(study, tmp_path)
    assert study == before


def test_the_same_data_gives_the_same_page(study: dict[str, Any], tmp_path: Path) -> None:
    assert build(study, tmp_path) == build(json.loads(json.dumps(study)), tmp_path)


def test_hostile_strings_stay_text(study: dict[str, Any], tmp_path: Path) -> None:
    plain = Reader(build(study, tmp_path))
    study["meta"] |= {"model": HOSTILE, "text": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    for at, run in enumerate(study["runs"]):
        run |= {"name": f"{at}{HOSTILE}", "label": HOSTILE + LONE}
        run["continuation"]["text"] = HOSTILE
        for stage in run["stages"]:
            stage |= {"op": HOSTILE}
    html = build(study, tmp_path)
    hostile = Reader(html)
    count = [sum(tag == name for tag, _ in hostile.tags) for name in ("script", "img", "link")]
    assert count == [sum(tag == name for tag, _ in plain.tags) for name in ("script", "img", "link")]
    assert "onerror" not in {name for _, attrs in hostile.tags for name in attrs}
    assert "window.hacked=1" in "".join(hostile.shown), "the text itself must survive"
    assert embedded(html) == study
    assert hostile.numbers.keys() == numbers_of_study(study).keys()


def test_the_hostile_check_can_fail() -> None:
    assert "onerror" in {name for _, attrs in Reader(f"<p>{HOSTILE}</p>").tags for name in attrs}


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_studies_make_a_page(name: str, tmp_path: Path) -> None:
    study = PARTIAL[name]
    html = build(study, tmp_path)
    page = Reader(html)
    text = "".join(page.shown)
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert verdict(tidy(study))[0] in text
    for word in ("NaN", "nan", "Infinity", "None", "undefined"):
        assert word not in text.split(), f"{word} is shown"
    embedded(html)
    embedded(html, "study-figures")
    finite = {key: value for key, value in page.numbers.items() if value is not None}
    asked = numbers_of_study(tidy(study))
    assert finite == {key: value for key, value in asked.items() if value is not None}


def test_nan_becomes_null(study: dict[str, Any], tmp_path: Path) -> None:
    study["runs"][1]["kl_worst"] = NAN
    study["runs"][2]["layers"][4]["mass_worst"] = INF
    html = build(study, tmp_path)
    assert embedded(html)["runs"][1]["kl_worst"] is None
    numbers = Reader(html).numbers
    assert numbers["exact-64", "kl_worst"] is None and numbers["exact-256", "layers.4.mass_worst"] is None


def test_nothing_is_fetched(page_file: Path) -> None:
    html = page_file.read_text()
    assert fetched(html) == []
    assert "default-src 'none'" in html and html.count("plotly.js v") == 1
    assert fetched(html + "<img src=https://example.org/a.png>") == ["img src=https://example.org/a.png"]
    assert fetched(html.replace("<style>", "<style>@import 'https://example.org';")) != []


def test_headers_have_scopes_and_headings_descend(page_file: Path) -> None:
    tags = Reader(page_file.read_text()).tags
    assert tags[0] == ("html", {"lang": "en"})
    assert {attrs.get("scope") for tag, attrs in tags if tag == "th"} == {"row", "col", "colgroup"}
    levels = [int(tag[1]) for tag, _ in tags if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_text_has_contrast(ground: str) -> None:
    def luminance(color: str) -> float:
        color = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
        parts = [int(color[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    block = CSS.split(":root{")[1 if ground == "light" else 2].split("}")[0]
    pairs = (entry.strip().split(":") for entry in block.split(";") if entry.strip().startswith("--"))
    color = {name: luminance(value) for name, value in pairs}
    for ink in ("--ink", "--soft", "--far", "--accent"):
        for paper in ("--ground", "--card"):
            dark, light = sorted((color[ink], color[paper]))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {paper}"


def test_the_file_is_written_whole_or_not_at_all(study: dict[str, Any], tmp_path: Path) -> None:
    path = write_report(study, tmp_path / "deep" / "study.html")
    assert [file.name for file in path.parent.iterdir()] == ["study.html"]
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_report(study | {"meta": {"model": object()}}, path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_report(study, tmp_path / "folder")
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["deep", "folder"], "a temporary file is left"


def test_verdict_follows_the_numbers(study: dict[str, Any]) -> None:
    said = " ".join(verdict(tidy(study)))
    assert "exact top-256 reads least" in said and "42.12 (+3.48 %)" in said and "layer is 3" in said
    study["runs"][4] |= {"delta": 0.031}
    assert "low rank int8 d16, 256 reads least" in verdict(tidy(study))[0]
    for run in study["runs"][1:]:
        run["delta"] = 0.2 if run["name"] == "exact-512" else 0.3
    assert "No sparse run" in verdict(tidy(study))[0] and "exact top-512" in verdict(tidy(study))[0]


def test_figures_are_valid_plotly(page_file: Path) -> None:
    import plotly.graph_objects as go

    figures = embedded(page_file.read_text(), "study-figures")
    assert {id_.rstrip("-0123456789") for id_ in figures} == {
        "plot-budget", "plot-bytes", "plot-mass-mean", "plot-mass-worst", "plot-overlap", "plot-timeline",
        "plot-stages",
    }  # fmt: skip
    for figure in figures.values():
        go.Figure(figure)


def test_thinning_drops_whole_queries_only() -> None:
    look = {"queries": list(range(1000)), "positions": [list(range(query + 1)) for query in range(1000)]}
    kept = thinned(look, DOTS)
    assert all(picks == list(range(query + 1)) for query, picks in kept)
    assert DOTS // 2 < sum(len(picks) for _, picks in kept) <= DOTS + 1000
    assert thinned(look, 10**9) == list(zip(look["queries"], look["positions"], strict=True))


def test_importing_the_room_is_cheap(tmp_path: Path) -> None:
    code = (
        "import sys, tilesieve.report as report\n"
        "heavy = {'torch', 'plotly', 'matplotlib', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"report.write_report({{}}, {str(tmp_path / 'a.html')!r})\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
