"""The pictures: right size, not blank, drawn from whatever is there."""

import random
from pathlib import Path

import matplotlib.image
import pytest
from report_sample import study as sample_study
from report_sections import trace
from test_report_page import PARTIAL, cut

from tilesieve.report import write_pngs
from tilesieve.report.png import PICTURES
from tilesieve.report.tidy import tidy

NAMES = [
    "perplexity-vs-budget.png", "perplexity-vs-bytes.png", "ladder.png", "retrieval.png", "sensitivity.png",
    "mass-by-layer.png", "timeline.png", "overlap.png", "reuse.png", "latent.png",
]  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_pngs(sample_study(), tmp_path_factory.mktemp("png") / "pictures")


def test_the_pictures_are_drawn(drawn: list[Path]) -> None:
    assert [path.name for path in drawn] == NAMES
    assert sorted(path.name for path in drawn[0].parent.iterdir()) == sorted(NAMES)
    for path in drawn:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[1] == 1600
        inked = (pixels[..., :3].min(axis=2) < 0.9).mean()
        assert 0.01 < inked < 0.75, f"{path.name}: {inked:.1%} of it is inked"


def test_only_another_number_gives_another_picture(drawn: list[Path], tmp_path: Path) -> None:
    study = sample_study() | {"overlaps": {}}
    for part in ("retrieval", "sensitivity", "reuse", "latent"):
        del study["sections"][part]
    before = {path.name: path.read_bytes() for path in drawn}
    again = write_pngs(study, tmp_path)
    # Layers left dense are points in this picture, and their section is gone.
    same = [path for path in again if path.name != "perplexity-vs-bytes.png"]
    assert len(same) == 4 and all(path.read_bytes() == before[path.name] for path in same)
    study["runs"][2]["perplexity"] = 45.0
    study["sections"]["ladder"]["rungs"][2]["own"] = 0.05
    study["timeline"][0]["cells"][40] = "f" * 64
    changed = {path.name for path in write_pngs(study, tmp_path) if path.read_bytes() != before[path.name]}
    assert changed == {"perplexity-vs-budget.png", "perplexity-vs-bytes.png", "ladder.png", "timeline.png"}


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_studies_make_what_they_can(name: str) -> None:
    # What a partial study leaves whole is drawn above already.
    whole = sample_study(4, 2)
    study = tidy({key: value for key, value in PARTIAL[name].items() if value != whole.get(key)})
    drawn = {file for file, draw in PICTURES if draw(study) is not None}
    if name in ("nothing", "meta", "nulls", "no runs"):
        assert not drawn


@pytest.mark.parametrize("name", ["not finite", "equal budgets", "empty layer", "timeline of no picks", "broken looks"])
def test_partial_studies_are_written(name: str, tmp_path: Path) -> None:
    paths = write_pngs({key: PARTIAL[name][key] for key in ("runs", "timeline")}, tmp_path)
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()} <= set(NAMES)
    assert paths


def test_dollar_signs_are_no_formulas(tmp_path: Path) -> None:
    study = sample_study(4, 2)
    study["meta"]["model"] = study["runs"][1]["label"] = study["sections"]["ladder"]["rungs"][1]["label"] = "$\\frac{$"
    study["sections"] = {"ladder": study["sections"]["ladder"]}
    assert len(write_pngs(study, tmp_path)) == 6


@pytest.mark.parametrize("part", ["ladder", "retrieval", "sensitivity", "reuse", "latent"])
def test_a_missing_or_broken_section_is_a_missing_picture(part: str) -> None:
    draw, whole = dict(PICTURES)[f"{part}.png"], sample_study(4, 2)
    assert draw(tidy(whole)) is not None
    for left in (None, {}, [], {"runs": [{}], "rungs": [{}], "rows": [{}], "layers": [{}], "ranked": [{}]}):
        assert draw(tidy(whole | {"sections": {part: left}})) is None
    dice = random.Random(3)
    for _ in range(15):
        # No picture is fine, an error is not.
        draw(tidy(whole | {"sections": {part: cut(whole["sections"][part], dice)}}))


def test_a_trace_is_drawn(tmp_path: Path) -> None:
    assert [path.name for path in write_pngs(trace(), tmp_path)] == ["timeline.png", "overlap.png"]


def test_a_picture_without_numbers_goes(tmp_path: Path) -> None:
    """A study with fewer sections in the folder of a larger one must not keep the larger one's pictures."""
    write_pngs(sample_study(), tmp_path)
    assert (tmp_path / "latent.png").exists()
    (tmp_path / "mine.png").write_bytes(b"not ours")
    study = sample_study()
    del study["sections"]["latent"]
    write_pngs(study, tmp_path)
    assert not (tmp_path / "latent.png").exists() and (tmp_path / "mine.png").exists()
