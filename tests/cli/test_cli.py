"""The command line: help, version, the catalogue, and how errors end; and tools/check.py, which ends in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

import tilesieve
from tilesieve.cli import main as cli
from tilesieve.ops.catalogue import CATALOGUE

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import check  # noqa: E402


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tilesieve {tilesieve.__version__}\n"


def test_help_names_the_commands(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("study", "ledger", "ops", "--debug", "--version"))


def test_a_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tilesieve", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"tilesieve {tilesieve.__version__}\n")
    wrong = subprocess.run([sys.executable, "-m", "tilesieve", "dance"], cwd=ROOT, capture_output=True, text=True)
    assert wrong.returncode == 2 and "dance" in wrong.stderr and "Traceback" not in wrong.stderr


def test_ops_lists_the_catalogue_in_flow_order(capsys):
    assert cli.main(["ops"]) == 0
    cells = [[c.strip() for c in line.split("│")] for line in capsys.readouterr().out.splitlines() if "│" in line]
    listed = [row[1:3] for row in cells if row[2]]
    assert [name for _, name in listed] == [entry.name for entry in CATALOGUE]
    stages = dict.fromkeys(entry.stage for entry in CATALOGUE)  # each is named once, where it begins
    assert [stage for stage, _ in listed if stage] == list(stages)


def ends(raised, debug=False):
    """The exit code of a command that raises, through the guard that every command has."""

    def command():
        raise raised

    token = cli._DEBUG.set(debug)
    try:
        with pytest.raises(SystemExit) as stop:
            cli.guarded(command)()
    finally:
        cli._DEBUG.reset(token)
    return stop.value.code


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ValueError("k is 0;\nallowed: [1, 2]"), "error: k is 0; allowed: [1, 2]\n"),
        (FileNotFoundError(2, "No such file", "a.txt"), "error: [Errno 2] No such file: 'a.txt'\n"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), None),
        (ValueError("x" * 300), f"error: {'x' * 300}\n"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(capsys, raised, line):
    assert ends(raised) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err.startswith("error: ")
    assert line is None or shown.err == line


def test_debug_shows_where(capsys):
    assert ends(ValueError("k is 0"), debug=True) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "raise raised" in shown and shown.endswith("error: k is 0\n")


def test_debug_is_a_flag_before_the_command(capsys):
    assert cli.main(["--debug", "ledger", "--context", "0"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert cli.main(["ledger", "--context", "0"]) == 2  # and it is not remembered
    assert "Traceback" not in capsys.readouterr().err


def test_an_interrupt_is_130_and_says_what_is_kept(capsys):
    assert ends(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == f"stopped: {cli.KEPT}\n"
    noted = KeyboardInterrupt("3 of 8 runs are in out/study")
    noted.add_note("the fourth is lost")
    assert ends(noted) == 130
    assert capsys.readouterr().err == "stopped: 3 of 8 runs are in out/study; the fourth is lost\n"


def test_other_errors_are_not_hidden():
    with pytest.raises(RuntimeError, match="a bug"):
        cli.guarded(lambda: (_ for _ in ()).throw(RuntimeError("a bug")))()


def test_a_closed_pipe_is_no_error(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # the command lets go of it
    assert ends(BrokenPipeError()) == 1
    assert capsys.readouterr().err == ""
    command = f"{sys.executable} -m tilesieve ops | true"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# tools/check.py


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("35 passed in 8.97s", (35, 0, 0)),
        ("2 failed, 3 passed, 1 skipped, 4 deselected, 1 error in 61.20s (0:01:01)", (3, 3, 1)),
        ("no tests ran in 0.01s", (0, 0, 0)),
        ("== 1 passed, 2 xfailed, 2 warnings in 0.1s ==", (1, 0, 0)),
        ("Segmentation fault", None),
    ],
)
def test_counts(line, found):
    assert check.counts(["1 passed in 9s earlier", "x", line] if found else [line]) == found


def test_hidden_skips():
    lines = [
        "SKIPPED [1] tests/report/test_page.py:12: needs Chromium",
        "SKIPPED [2] tests/ops/test_kernel.py:3: no NVCC on the path",
        "SKIPPED [1] tests/report/test_chromium.py:1: slow",
        "FAILED tests/a.py - needs nvcc",
    ]
    assert check.hidden(lines) == lines[:2]


def test_summary_ends_in_the_sum():
    results = [
        check.Result("lint", True, 1.0),
        check.Result("types", False, 2.0),
        check.Result("ops", True, 800.0, (10, 0, 2)),
        check.Result("models", False, 100.0, (5, 3, 1)),
        check.Result("rooms", False, 0.1, why="no test was collected"),
    ]
    lines = check.summary(results).splitlines()
    assert lines[-1] == "15 passed, 5 failed, 3 skipped"  # types and rooms count once each
    assert "rooms: no test was collected" in lines
    assert "903 s over the budget of 900 s" in lines
    assert [line.split()[:2] for line in lines[1:6]] == [
        ["lint", "ok"], ["types", "FAILED"], ["ops", "ok"], ["models", "FAILED"], ["rooms", "FAILED"],
    ]  # fmt: skip
    assert check.summary(results[:1]).endswith("\n0 passed, 0 failed, 0 skipped")


def seeded(root, **files):
    for path, source in files.items():
        file = root / "tests" / f"{path.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)


PASSES = "def test_a():\n    pass\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='needs chromium')\ndef test_a():\n    pass\n"


def test_a_part_on_a_seeded_tree(tmp_path, capfd):
    seeded(tmp_path, hf__test_a=PASSES, study__test_b=SKIPS)
    for ci, ok in (("", True), ("true", False)):
        result = check.test("models", ("hf", "study"), tmp_path, {"CI": ci})
        assert (result.ok, result.counts) == (ok, (1, 0, 1))
        assert ("needs chromium" in result.why) != ok
    seeded(tmp_path, study__test_b="def test_b():\n    assert 0\n")
    assert not check.test("models", ("hf", "study"), tmp_path, {}).ok
    (tmp_path / "tests" / "flow").mkdir()
    assert check.test("rooms", ("flow",), tmp_path, {}).why == "no test was collected"
    assert check.test("rooms", ("nowhere",), tmp_path, {}).why == "pytest ended with 4"
    assert "1 passed" in capfd.readouterr().out


def test_every_part_runs_and_one_failure_is_a_failure(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(check, "CHECKS", (("lint", ((sys.executable, "-c", "raise SystemExit(3)"),)),))
    seeded(tmp_path, test_house=PASSES, ops__test_a=PASSES)
    assert check.main(["--only", "lint,house,ops"], tmp_path) == 1
    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 1 failed, 0 skipped"
    assert check.main(["--only", "ops"], tmp_path) == 0
    seeded(tmp_path, corner__test_c=PASSES)
    assert check.main(["--only", "ops"], tmp_path) == 1
    assert "no part runs tests/corner" in capfd.readouterr().out


def test_only_names_parts(capsys):
    for wrong in ("lint,dance", ","):
        with pytest.raises(SystemExit) as stop:
            check.main(["--only", wrong])
        assert stop.value.code == 2
    assert "allowed: lint, types, sizes, house, ops, rooms, models" in capsys.readouterr().err


def test_no_folder_of_tests_is_left_out():
    assert check.homeless(ROOT) == []
