"""What the documents show is run: snippets as they stand, commands with their placeholders filled."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = (*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")))
# What a study command of the documents is run with here: a model of seconds, and sizes that fit it.
SMALL = {"--tokens": "64", "--budgets": "8,16", "--k": "16", "--steps": "2", "--d-score": "8"}


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


@pytest.fixture(scope="module")
def folder(model_folder, text_file, tmp_path_factory):
    """A finished study: what the documents call out/study."""
    folder = tmp_path_factory.mktemp("study")
    done = run([*small(["tilesieve", "study"], model_folder, text_file), "--out", str(folder)], folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def ran():
    """Commands that were run, by their words: documents repeat one another."""
    return {}


def run(words, cwd):
    return subprocess.run([sys.executable, "-m", *words], cwd=cwd, capture_output=True, text=True)


def small(words, model, text):
    """The command on the tiny model: its own options stay, their values shrink."""
    given = dict(zip(words, words[1:], strict=False))
    words = [SMALL.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    more = {**{name: value for name, value in SMALL.items() if name != "--d-score"}, "--model": model, "--text": text}
    return words + [str(part) for name, value in more.items() if name not in given for part in (name, value)]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("tilesieve ") and "--quick" not in c])
def test_commands_run(command, folder, ran, model_folder, text_file, tmp_path):
    """--quick runs the real model: the study's own test does (tests/study/test_real_model.py)."""
    words = shlex.split(command)
    filled = {"DIR_OR_GGUF": model_folder, "FILE": text_file, "TRACE": next(folder.glob("trace-*.jsonl")),
              "A": folder, "B": folder, "out/study": folder}  # fmt: skip
    words = [str(filled.get(word, word)) for word in words]
    if words[1] == "study" and not {"--trace", "--compare"} & set(words):
        words = small(words, model_folder, text_file)
    # Where the output goes and in which order options come makes no other command.
    at = words.index("--out") if "--out" in words else len(words)
    key = tuple(sorted(words[:at] + words[at + 2 :]))
    done = ran[key] = ran.get(key) or run(words, tmp_path)
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
