"""What the documents show is run: snippets as they stand, commands with their placeholders filled."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = tuple(sorted(ROOT.glob("*.md")))


def indented(text: str) -> list[str]:
    """Lines of indented code blocks and of fenced shell ones, without their comments."""
    return [line.strip().partition("  #")[0].strip() for line in text.splitlines() if line.startswith("    ")]


COMMANDS = sorted({c for doc in DOCS for c in indented(doc.read_text()) if c.startswith(("tilesieve ", "make "))})
SNIPPETS = [(doc.name, code) for doc in DOCS for code in re.findall(r"```python\n(.*?)```", doc.read_text(), re.S)]


def test_there_is_something_to_run():
    assert len(SNIPPETS) >= 1 and sum(c.startswith("tilesieve") for c in COMMANDS) >= 3
    assert {"make study", "make test", "make lint"} <= set(COMMANDS)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_knows_the_target(command):
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--always-make"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "python" in done.stdout


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("tilesieve ") and "--quick" not in c])
def test_commands_run(command, model_folder, text_file, tmp_path):
    """--quick runs the real model: the study's own test does (tests/study/test_real_model.py)."""
    words = shlex.split(command)
    if words[1] == "study":
        filled = {
            "DIR_OR_GGUF": str(model_folder),
            "FILE": str(text_file),
            "2048": "128",
            "64,256": "8,16",
            "256": "16",
            "16": "8",
        }
        words = [filled.get(word, word) for word in words] + ["--out", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_snippets_run(name, code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_links_and_pictures_exist():
    for doc in DOCS:
        for target in re.findall(r"\]\(([^)#]+)\)", doc.read_text()):
            assert "://" in target or (ROOT / target).exists(), f"{doc.name} points at {target}"


def test_the_readme_is_one_screen_before_its_picture():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(n for n, line in enumerate(lines) if line.startswith("![")) <= 24
