"""What the report says and where it points: right for the study at hand, and for older ones."""

from typing import Any

import pytest
from report_checks import Reader, embedded
from report_sample import study as sample_study
from report_sections import trace

from tilesieve.report import columns, mass
from tilesieve.report.compare import page as compared
from tilesieve.report.page import page as page_of
from tilesieve.report.png_sections import reuse
from tilesieve.report.tidy import tidy


def figures(study: dict[str, Any]) -> dict[str, Any]:
    return dict(embedded(page_of(study), "study-figures"))


def text_of(study: dict[str, Any]) -> str:
    return "".join(Reader(page_of(study)).shown)


def test_runs_by_layer_stand_at_their_layers() -> None:
    study = sample_study(3, 2)
    part = study["sections"]["gather"]
    assert part["layer_ids"] == [2, 5, 12]
    assert figures(study)["plot-gather-layers"]["data"][0]["x"] == [2, 5, 12]
    numbers = page_of(study).split("<caption>Runs by layer</caption>")[1].split("</table>")[0]
    assert [f'<th scope="row">{at}</th>' in numbers for at in (0, 1, 2, 5, 12)] == [False, False, True, True, True]
    for old in (None, [2, 5], [2, 5, "x"]):
        part["layer_ids"] = old
        assert figures(study)["plot-gather-layers"]["data"][0]["x"] == [0, 1, 2]


def test_retrieval_opens_on_a_run_that_fails_to_hold() -> None:
    study = sample_study(4, 2)
    dense, exact, window = runs = study["sections"]["retrieval"]["runs"]
    assert {cell["held"] for cell in dense["cells"]} == {1.0}

    def opened(html: str) -> str:
        return html.split('<section id="retrieval"')[1].split(" selected>")[1].split("<")[0]

    assert opened(page_of(study)) == opened(compared(study, study)) == exact["label"]
    assert figures(study)["plot-retrieval-held"]["data"][0]["z"][0][0] == exact["cells"][0]["held"]
    for cell in exact["cells"]:
        cell["held"] = 1.0
    assert opened(page_of(study)) == opened(compared(study, study)) == window["label"]
    exact["cells"][3]["held"] = 0.0
    assert opened(page_of(study)) == exact["label"]
    for cell in (*exact["cells"], *window["cells"]):
        cell["held"] = None
    assert opened(page_of(study)) == exact["label"]
    study["sections"]["retrieval"]["runs"] = runs[:1]
    assert figures(study)["plot-retrieval-right"]["data"][0]["z"][0][0] == dense["cells"][0]["right"]


def test_held_and_samples_are_said_right() -> None:
    study = sample_study(4, 2)
    assert "Share of (layer, head, answer token) whose selection holds the position to copy from." in text_of(study)
    assert "4 samples a cell, an answer of 7 tokens" in text_of(study)
    study["sections"]["retrieval"] |= {"samples": 1, "needle_tokens": 1}
    assert "1 sample a cell, an answer of 1 token." in text_of(study)


def test_every_fired_finding_has_a_link() -> None:
    html = page_of(sample_study())
    cards = html.split('<article class="finding"')[1:]
    ids = {attrs.get("id") for tag, attrs in Reader(html).tags if tag == "section"}
    links = [card.split('<a href="#')[1].split('">See the numbers</a>')[0] for card in cards]
    assert len(links) == sum(each["fired"] for each in sample_study()["findings"]) == 2 and set(links) <= ids


def test_rows_that_were_looked_at_are_said() -> None:
    study = sample_study(4, 2)
    over = "mean over layers, heads and the last 256 rows looked at"
    assert over in text_of(study) and "Measured over the last 256 rows looked at." in text_of(study)
    assert "where it is lowest, over the last 256 rows looked at" in text_of(study)
    other = sample_study(4, 2)
    for absent in (None, "words", True):
        other["meta"]["rows_looked"] = absent
        assert "heads and the last rows" in text_of(other) and "{rows}" not in text_of(other)
    both = "".join(Reader(compared(study, other)).shown)
    assert "heads and the last 256 rows looked at (A), the last rows (B)" in both


def test_overlap_is_said_right() -> None:
    said = "share of exact selection's picks, at the same k and with the same kept ends, that this run makes too"
    assert said == columns.OVERLAP
    assert f"{said}, 0 to 1, over the last 256 rows looked at" in text_of(sample_study(4, 2))
    assert f"S{said[1:]}." in [caption for _, _, _, caption in mass.KEYS]


def test_the_shared_maximum_is_judged() -> None:
    study = sample_study(4, 2)
    part = study["sections"]["numerics"]["global_max"]
    assert (
        "Keeping the maximum of all scores is harmless on this text because the largest gap was 5.5 nats; "
        "it would break at 94."
    ) in text_of(study)
    shown = Reader(page_of(study)).numbers
    for key, value in (("worst_share", 0.33), ("largest_gap", 5.5), ("breaks_at", 94.0), ("nothing_at", 104.0)):
        assert shown["", f"sections.numerics.global_max.{key}"] == value
    part["largest_gap"] = 97.0
    assert "is not harmless on this text: the largest gap was 97 nats; it breaks at 94." in text_of(study)
    part |= {"largest_gap": 5.5, "worst_share": 1.2}
    assert "is not harmless on this text: the largest gap was 5.5 nats" in text_of(study)
    part |= {"worst_share": 0.33, "breaks_at": None}
    assert "because the largest gap was 5.5 nats." in text_of(study)
    for key in ("worst_share", "largest_gap", "breaks_at", "nothing_at"):
        del part[key]
    assert "Keeping the maximum" not in text_of(study) and "so it is within it" in text_of(study)


def test_letters_of_near_lines_stand_apart() -> None:
    study = sample_study(4, 2)
    ks = [317, 1110, 341, 1730, 325]
    study["sections"]["limits"]["lines"] = [{"name": f"line {k}", "k": k, "what": "x"} for k in ks]
    layout = figures(study)["plot-budget"]["layout"]
    high = {flag["text"]: flag["yshift"] for flag in layout["annotations"]}
    assert high["<b>A</b>"] == 0 and high["<b>E</b>"] == 15 and high["<b>C</b>"] == 30, "317, 325, 341"
    assert layout["margin"]["t"] >= 30 + 16
    assert [shape["x0"] for shape in layout["shapes"]] == ks
    study["sections"]["limits"]["lines"] = [{"name": "a", "k": 64}, {"name": "b", "k": 1024}]
    assert [flag["yshift"] for flag in figures(study)["plot-budget"]["layout"]["annotations"]] == [0, 0]


def test_no_axis_abbreviates_its_numbers() -> None:
    study = sample_study(4, 2)
    for html in (page_of(study), compared(study, study)):
        choices = embedded(html, "study-choices").values()
        for figure in (*embedded(html, "study-figures").values(), *(each for list_ in choices for each in list_)):
            axes = [figure["layout"]["xaxis"], figure["layout"]["yaxis"]]
            bars = [trace["colorbar"] for trace in figure["data"] if "colorbar" in trace]
            assert {axis["exponentformat"] for axis in (*axes, *bars)} == {"none"}


def test_named_thresholds_are_a_point_of_their_own() -> None:
    study = sample_study(4, 2)
    named, drawn = "cosine 0.95 / 0.90", figures(study)
    for plot in ("plot-reuse-delta", "plot-reuse-mass-mean"):
        traces = {trace["meta"]: trace for trace in drawn[plot]["data"]}
        assert traces["named"]["text"] == [named] and traces["named"]["mode"] == "markers"
        assert named not in traces["cosine"]["text"] and len(traces["cosine"]["x"]) == 4
    picture = reuse(tidy(study))
    assert picture is not None
    lines = {line.get_label(): line for line in picture.axes[0].lines}
    assert len(lines["cosine, two named thresholds"].get_xdata()) == 1  # type: ignore[arg-type]
    assert len(lines["when the query has turned"].get_xdata()) == 4  # type: ignore[arg-type]


def test_reuse_says_which_way_is_better() -> None:
    html = page_of(sample_study(4, 2))
    captions = [html.split(f'id="plot-reuse-{key}"')[1].split("</figcaption>")[0] for key in ("delta", "mass-mean")]
    assert "The lower curve is the better rule." in captions[0] and "The higher curve is" in captions[1]
    lead = html.split('<section id="reuse"')[1].split("<figure")[0]
    assert "at nearly equal rates (the rates reached are drawn)" in lead and "lower" not in lead


@pytest.mark.parametrize("layer", [0, 7])
def test_one_layer_has_one_tick(layer: int) -> None:
    study = trace()
    study["sections"]["gather"] |= {"runs_by_layer": [41.0], "layer_ids": [layer]}
    study["overlaps"] |= {"layers": [[1.0]], "layer_ids": [layer]}
    for step in study["overlaps"]["steps"]:
        step["layers"] = step["layers"][:1]
    drawn = figures(study)
    for plot in ("plot-gather-layers", "plot-overlap-layers", "plot-overlap-lag-layers"):
        axis = drawn[plot]["layout"]["xaxis"]
        assert axis["range"] == [layer - 0.5, layer + 0.5] and axis["dtick"] == 1 and axis["tickformat"] == "d"
