"""The pictures: right size, not blank, drawn from whatever is there."""

from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from test_report_page import PARTIAL

from tilesieve.report import write_pngs

NAMES = ["perplexity-vs-budget.png", "mass-by-layer.png", "timeline.png"]


def test_the_pictures_are_drawn(study: dict[str, Any], tmp_path: Path) -> None:
    paths = write_pngs(study, tmp_path / "pictures")
    assert [path.name for path in paths] == NAMES
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(NAMES)
    for path in paths:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[1] == 1600
        inked = (pixels[..., :3].min(axis=2) < 0.9).mean()
        assert 0.02 < inked < 0.6, f"{path.name}: {inked:.1%} of it is inked"


def test_the_same_study_gives_the_same_bytes(study: dict[str, Any], tmp_path: Path) -> None:
    first, second = write_pngs(study, tmp_path / "a")[0], write_pngs(study, tmp_path / "b")[0]
    assert first.read_bytes() == second.read_bytes()


def test_another_number_gives_another_picture(study: dict[str, Any], tmp_path: Path) -> None:
    first = write_pngs(study, tmp_path / "a")[0].read_bytes()
    study["runs"][2]["perplexity"] = 45.0
    assert write_pngs(study, tmp_path / "b")[0].read_bytes() != first


@pytest.mark.parametrize("name", PARTIAL)
def test_partial_studies_make_what_they_can(name: str, tmp_path: Path) -> None:
    paths = write_pngs(PARTIAL[name], tmp_path)
    assert {path.name for path in paths} == {path.name for path in tmp_path.iterdir()} <= set(NAMES)
    if name in ("nothing", "meta", "nulls", "no runs"):
        assert "perplexity-vs-budget.png" not in {path.name for path in paths}


def test_dollar_signs_are_no_formulas(study: dict[str, Any], tmp_path: Path) -> None:
    study["meta"]["model"] = study["runs"][1]["label"] = "$\\frac{$ <b>"
    assert len(write_pngs(study, tmp_path)) == 3
