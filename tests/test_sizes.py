"""tools/sizes.py on this tree and on a seeded one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import sizes  # noqa: E402


def test_no_file_is_too_long() -> None:
    counts = sizes.line_counts(ROOT)
    assert "tilesieve/__init__.py" in counts and "tests/test_sizes.py" in counts
    assert {path: counts[path] for path in sizes.too_long(counts)} == {}


def seed(root: Path, **lines: int) -> None:
    for name, count in lines.items():
        file = root / "tilesieve" / "ops" / "gate" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * count)


def test_a_file_at_the_limit_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed(tmp_path, op=sizes.LIMIT, cost=10, cases=20)
    (tmp_path / "tilesieve" / "cost.py").write_text("")
    assert sizes.main([str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert [line.split() for line in shown.out.splitlines()] == [
        ["room", "files", "lines", "median", "longest", "longest", "file"],
        ["tilesieve", "1", "0", "0", "0", "tilesieve/cost.py"],
        ["tilesieve/ops", "3", "430", "20", "400", "tilesieve/ops/gate/op.py"],
        ["all", "4", "430", "15", "400", "tilesieve/ops/gate/op.py"],
    ]
    assert shown.err == ""


def test_a_longer_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed(tmp_path, op=sizes.LIMIT + 1, cost=10)
    assert sizes.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "tilesieve/ops/gate/op.py: 401 lines, the limit is 400\n"


def test_an_empty_tree_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sizes.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["all", "0", "0", "0", "0"]
