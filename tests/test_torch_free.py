"""What must start fast loads no torch: shown in subprocesses in which importing torch fails and is noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = (
    *("tilesieve", "tilesieve.cost", "tilesieve.policies", "tilesieve.ops", "tilesieve.ops.catalogue"),
    *("tilesieve.report", "tilesieve.ledger"),
)
COMMANDS = (("tilesieve", "--help"), ("tilesieve", "ledger"))

# Runs modules (or one command) and writes {subject: {"error": text, "heavy": ["torch from FILE:LINE"]}} to a
# file. A spec is found for the forbidden packages, so that asking whether they are there is no offence.
DRIVER = """
import importlib, json, runpy, sys
from importlib.machinery import ModuleSpec

HEAVY = ("torch", "transformers", "tilelang")

class Wall:
    heavy = []
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name.partition(".")[0] in HEAVY else None
    def create_module(self, spec):
        frame = sys._getframe()
        while frame.f_globals is globals() or frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        self.heavy.append(f"{spec.name} from {frame.f_code.co_filename}:{frame.f_lineno}")
        raise ImportError(f"{spec.name} must not be imported here")
    def exec_module(self, module):
        pass

def load(name):
    if importlib.import_module(name).__file__ is None:
        raise ImportError(f"{name} is a folder without __init__.py")

def run(subject, do):
    Wall.heavy, error = [], ""
    try:
        do()
    except SystemExit as stop:
        error = f"exit status {stop.code}" if stop.code else ""
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
    loaded = [f"{name} in sys.modules" for name in HEAVY if name in sys.modules]
    return {subject: {"error": error, "heavy": Wall.heavy + loaded}}

sys.meta_path.insert(0, Wall())
kind, target, *words = sys.argv[1:]
found = {}
if kind == "modules":
    for word in words:
        found |= run(word, lambda: load(word))
else:
    sys.argv = words
    found |= run(" ".join(words), lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True))
with open(target, "w") as file:
    json.dump(found, file)
"""
Report = dict[str, dict[str, str | list[str]]]
FREE: dict[str, str | list[str]] = {"error": "", "heavy": []}


def discovered() -> list[str]:
    """The named modules and every cost.py, ledger and report file there is."""
    files = (
        file
        for pattern in ("ops/*/cost.py", "ledger/*.py", "report/*.py")
        for file in sorted((ROOT / "tilesieve").glob(pattern))
        if file.name != "__init__.py"
    )
    return [*NAMED, *(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)]


def drive(kind: str, words: tuple[str, ...], target: Path, root: Path) -> tuple[Report, str]:
    """The report on `words`, and what the subprocess printed."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, kind, str(target), *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert target.exists(), done.stderr
    report: Report = json.loads(target.read_text())
    return report, done.stdout + done.stderr


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return drive("modules", tuple(discovered()), tmp_path_factory.mktemp("free") / "report.json", ROOT)[0]


@pytest.mark.parametrize("name", discovered())
def test_a_module_is_torch_free(name: str, modules: Report) -> None:
    assert modules[name] == FREE


def test_every_operator_has_its_cost_among_them() -> None:
    from tilesieve.ops.catalogue import NAMES

    assert NAMES
    assert [name for name in NAMES if f"tilesieve.ops.{name}.cost" not in discovered()] == []


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_is_torch_free(command: tuple[str, ...], tmp_path: Path) -> None:
    report, printed = drive("command", command, tmp_path / "report.json", ROOT)
    assert report == {" ".join(command): FREE}, printed
    assert printed.strip()


# (module, source, what is imported where: "" for nothing)
CULPRITS = (
    ("plain", "import torch\n", "torch from plain.py:1"),
    ("caught", "try:\n    import torch.nn\nexcept ImportError:\n    pass\n", "torch from caught.py:2"),
    ("through", "import helper\n", "transformers from helper.py:1"),
    ("computed", "from importlib import import_module\nimport_module('tile' + 'lang')\n", "tilelang from "),
    ("asks", "from importlib.util import find_spec\nassert find_spec('torch')\n", ""),
    ("later", "def f():\n    import torch\n", ""),
)


def test_the_wall_catches_what_it_should(tmp_path: Path) -> None:
    for name, source, _ in (*CULPRITS, ("helper", "import transformers\n", "")):
        (tmp_path / f"{name}.py").write_text(source)
    names = tuple(name for name, _, _ in CULPRITS)
    report, _ = drive("modules", names, tmp_path / "report.json", tmp_path)
    for name, _, where in CULPRITS:
        heavy = [str(line).replace(f"{tmp_path}{os.sep}", "") for line in report[name]["heavy"]]
        assert len(heavy) == bool(where), name
        assert all(line.startswith(where) for line in heavy), heavy
    assert str(report["plain"]["error"]).startswith("ImportError")
    assert report["later"] == report["asks"] == FREE


@pytest.mark.parametrize(
    ("source", "heavy", "error"),
    [
        ("import torch", 1, "ImportError: torch must not be imported here"),
        ("print('fine')", 0, ""),
        ("import sys\nsys.exit(2)", 0, "exit status 2"),
        ("import sys\nsys.exit(0)", 0, ""),
    ],
)
def test_the_wall_stands_around_commands(source: str, heavy: int, error: str, tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(source)
    report, _ = drive("command", ("tool", "--help"), tmp_path / "report.json", tmp_path)
    assert len(report["tool --help"]["heavy"]) == heavy
    assert report["tool --help"]["error"] == error


def test_a_missing_module_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hollow").mkdir()
    report, _ = drive("modules", ("no_such_module", "hollow"), tmp_path / "report.json", tmp_path)
    assert report["no_such_module"]["error"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert report["hollow"]["error"] == "ImportError: hollow is a folder without __init__.py"
