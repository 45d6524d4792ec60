"""The page as text: the numbers, the escapes, what is missing, what is fetched."""

import copy
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_checks import Reader, embedded, fetched, numbers_of_study, untrue
from report_sample import study as sample_study
from report_sections import trace

from tilesieve.report import write_report
from tilesieve.report.page import page as page_of
from tilesieve.report.style import CSS
from tilesieve.report.tidy import tidy
from tilesieve.report.verdict import verdict

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"&'<!-- %{x} $x$"
LONE = "\ud800"  # half a character, which JSON can hold and UTF-8 cannot
NAN, INF = float("nan"), float("inf")


def small() -> dict[str, Any]:
    """The sample with four layers of two heads: as many shapes, fewer numbers."""
    return sample_study(4, 2)


def only(keep: int, **changes: Any) -> dict[str, Any]:
    study = small()
    return study | {"runs": study["runs"][:keep], **changes}


def drop(*keys: str) -> dict[str, Any]:
    """Every run without these keys: an older or a younger study."""
    study = small()
    study["runs"] = [{key: value for key, value in run.items() if key not in keys} for run in study["runs"]]
    return study


def blank(**values: Any) -> dict[str, Any]:
    study = small()
    return study | {"runs": [{**run, **values} for run in study["runs"]], "timeline": study["timeline"][:1]}


BARE = {"run": "x", "queries": [5], "cells": ["8"], "bin": 4, "length": 6}
PARTIAL: dict[str, dict[str, Any]] = {
    "nothing": {},
    "meta": {"schema": 1, "meta": {"model": "m"}},
    "nulls": {"schema": None, "meta": None, "runs": None, "timeline": None},
    "no runs": only(0),
    "dense": only(1, timeline=[]),
    "no dense": {**small(), "runs": small()["runs"][1:]},
    "one nameless run": {"runs": [{}]},
    "a null run": {"runs": [None, small()["runs"][1]]},
    "no timeline": {key: value for key, value in small().items() if key != "timeline"},
    "empty timeline": {**small(), "timeline": [{"run": "x", "layer": 0, "queries": [], "cells": []}]},
    "unknown run in timeline": {**small(), "timeline": [BARE]},
    "timeline of no picks": {**small(), "timeline": [BARE | {"cells": [""]}]},
    "broken looks": {**small(), "timeline": [None, 7, {}, BARE | {"cells": ["xyz"]}, BARE | {"bin": 0}, BARE]},
    "old timeline": {**small(), "timeline": [{"run": "x", "layer": 0, "queries": [5], "positions": [[1, 2]]}]},
    "wrong kinds": {"runs": {}, "timeline": "x", "overlaps": [1], "sections": [], "findings": {"a": 1}, "meta": []},
    "a trace": trace(),
    "a bare trace": {"meta": {"trace": "x.npz"}, "runs": []},
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


def poison(study: dict[str, Any]) -> None:
    """Hostile words wherever schema 2 has words; the names that code goes by stay."""

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: walk(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [walk(item, key) for item in value]
        free = isinstance(value, str) and key not in ("cells", "rule", "section")
        return f"{value}{HOSTILE}" if free else value

    for part in ("sections", "overlaps", "findings"):
        study[part] = walk(study[part])
    study["timeline"] = [look | {"run": look["run"] + HOSTILE} for look in study["timeline"]]


def build(study: dict[str, Any], folder: Path) -> str:
    return write_report(study, folder / "study.html").read_text()


def test_every_number_is_in_a_cell_exactly(study: dict[str, Any], tmp_path: Path) -> None:
    shown, wanted = Reader(build(study, tmp_path)).numbers, numbers_of_study(study)
    assert len(wanted) > 6000 and ("exact-256", "layers.3.mass_mean") in wanted
    assert ("", "sections.ladder.rungs.2.own") in wanted and ("", "overlaps.layers.3.17") in wanted
    assert shown == wanted


def test_a_changed_number_is_seen(study: dict[str, Any], tmp_path: Path) -> None:
    html = build(study, tmp_path)
    assert untrue(study, html) == [] and html.count('data-value="42.1185"') > 1
    broken = html.replace('data-value="42.1185"', 'data-value="42.1186"')
    assert Reader(broken).numbers != numbers_of_study(study)
    assert "exact-256 perplexity: 42.1186 is not 42.1185" in untrue(study, broken)
    with pytest.raises(AssertionError, match="differently"):
        Reader(html.replace('data-value="42.1185"', 'data-value="42.1186"', 1))


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
    poison(study)
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
    assert untrue(embedded(html) | {"runs": tidy(study)["runs"]}, html) == []
    asked = numbers_of_study({"runs": tidy(study)["runs"]})
    shown = {key for key, value in page.numbers.items() if value is not None}
    assert {key for key, value in asked.items() if value is not None} <= shown


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
    assert {attrs.get("scope") for tag, attrs in tags if tag == "th"} == {"row", "col"}
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

    html = page_file.read_text()
    figures, choices = embedded(html, "study-figures"), embedded(html, "study-choices")
    assert {id_.split("-")[1] for id_ in figures} >= {
        "budget", "bytes", "ladder", "retrieval", "sensitivity", "mass", "timeline", "overlap", "reuse", "gather",
        "latent", "stages",
    }  # fmt: skip
    for figure in (*figures.values(), *(choice for each in choices.values() for choice in each)):
        # The one colour that only the browser knows.
        go.Figure(json.loads(json.dumps(figure).replace("var(--mid)", "#eceef2")))


def test_layers_are_counted(page_file: Path) -> None:
    for id_, figure in embedded(page_file.read_text(), "study-figures").items():
        for axis in (figure["layout"]["xaxis"], figure["layout"]["yaxis"]):
            if axis["title"]["text"] in ("layer", "head", "in layer", "picks of layer"):
                assert axis["tickformat"] == "d" and axis["dtick"] >= 1, id_


def test_every_figure_has_its_numbers_below(page_file: Path) -> None:
    html = page_file.read_text()
    figures = html.split("<figure")[1:]
    assert len(figures) == len(embedded(html, "study-figures")) > 30
    for figure in figures:
        assert "<details" in figure.split("</figure>")[0] and "data-field" in figure.split("</figure>")[0]


def test_a_limit_out_of_reach_is_listed_only(study: dict[str, Any]) -> None:
    figure = embedded(page_of(study), "study-figures")["plot-budget"]["layout"]
    assert [shape["x0"] for shape in figure["shapes"]] == [1730, 1110]
    assert [flag["text"] for flag in figure["annotations"]] == ["<b>A</b>", "<b>B</b>"]
    assert "Further out than drawn: D." in page_of(study)


def test_other_tokens_get_a_plot_of_their_own(study: dict[str, Any]) -> None:
    def drawn() -> tuple[set[str], bool]:
        figures = embedded(page_of(study), "study-figures")
        return {trace["meta"] for trace in figures["plot-bytes"]["data"]}, "plot-ladder-bytes" in figures

    assert drawn()[0] >= {"ladder", "exempt"} and not drawn()[1]
    study["sections"]["ladder"]["tokens"] = 1024
    study["sections"]["sensitivity"]["scored"] = [0, 4096]
    assert not drawn()[0] & {"ladder", "exempt"} and drawn()[1]


def test_side_rungs_are_not_summed(study: dict[str, Any]) -> None:
    figure = embedded(page_of(study), "study-figures")["plot-ladder"]
    own = next(trace for trace in figure["data"] if trace["meta"] == "own")
    ends = [base + (value or 0) for base, value in zip(own["base"], own["x"], strict=True)]
    assert abs(ends[-1] - study["sections"]["ladder"]["total"]) < 1e-12
    side = next(trace for trace in figure["data"] if trace["meta"] == "side")
    assert [value for value in side["x"] if value is not None] == [0.0017]
    # Held against the rung two above, it begins where that one ended.
    study["sections"]["ladder"]["rungs"][4] |= {"own": 0.0193 + 0.0017}
    moved = embedded(page_of(study), "study-figures")["plot-ladder"]["data"]
    base = next(trace for trace in moved if trace["meta"] == "side")["base"]
    assert base[4] == pytest.approx(own["base"][3]) and base[5] == own["base"][5]


def test_findings_link_only_to_what_is_there(study: dict[str, Any]) -> None:
    tags = Reader(page_of(study)).tags
    ids = {attrs["id"] for _, attrs in tags if attrs.get("id")}
    links = [str(attrs["href"]) for tag, attrs in tags if tag == "a"]
    assert "#ladder" in links and {link[1:] for link in links} <= ids
    assert [attrs["data-finding"] for _, attrs in tags if "data-finding" in attrs] == ["shared-set", "weak-layer"]
    del study["sections"]["ladder"]
    assert "#ladder" not in [attrs.get("href") for _, attrs in Reader(page_of(study)).tags]


def test_meta_is_shown_as_it_is(study: dict[str, Any]) -> None:
    text = "".join(Reader(page_of(study)).shown)
    assert study["meta"]["command"] in text and "2,048 to 4,096" in text
    study["meta"]["command"] = ["tilesieve", "study", "--out", "a folder"]
    assert "tilesieve study --out 'a folder'" in "".join(Reader(page_of(study)).shown)


def test_a_trace_says_what_it_is() -> None:
    shown = "".join(Reader(page_of(trace())).shown)
    assert "study of a trace: engine.npz" in shown and "not what the selection loses" in shown
    assert "What the columns mean" not in shown


def cut(value: Any, dice: random.Random) -> Any:
    """JSON with one place in it gone, null, empty, not finite or of another kind."""
    value = copy.deepcopy(value)
    at = value
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = dice.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and dice.random() < 0.75:
            at = at[key]
            continue
        if dice.random() < 0.3:
            del at[key]
        else:
            at[key] = dice.choice([None, [], {}, NAN, "words", 7, [None], [{}], True])
        return value


@pytest.mark.parametrize("part", ["sections", "overlaps", "findings", "timeline"])
def test_broken_parts_never_break_the_page(part: str) -> None:
    whole, dice = small(), random.Random(5)
    names = list(whole["sections"]) if part == "sections" else [""]
    for name in names:
        for empty in (None, {}, []):
            study = whole | {part: whole[part] | {name: empty} if name else empty}
            page_of(study)
        for _ in range(4):
            study = whole | {part: whole[part] | {name: cut(whole[part][name], dice)} if name else
                             cut(whole[part], dice)}  # fmt: skip
            html = page_of(study)
            wrong = [line for line in untrue(embedded(html), html) if "None is not" not in line]
            assert wrong == []


def test_importing_the_room_is_cheap(tmp_path: Path) -> None:
    code = (
        "import sys, tilesieve.report as report\n"
        "heavy = {'torch', 'plotly', 'matplotlib', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"report.write_report({{}}, {str(tmp_path / 'a.html')!r})\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
