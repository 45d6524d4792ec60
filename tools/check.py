"""Run everything that must pass: lint, types, sizes, then the tests in parts, each in a process of its own.

Usage: python tools/check.py [--only PART,PART]

Every part runs even after a failure; the exit code is 1 if any failed. The last line is the sum of the tests,
"N passed, N failed, N skipped"; a failed part without a failed test counts as one failure. With CI=true in the
environment a test that was skipped for want of Chromium or nvcc fails its part.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = 900  # seconds for all parts together
NEEDED = ("chromium", "nvcc")  # what CI has, so that a skip there hides a test

PYTHON = (sys.executable, "-m")
CHECKS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("lint", ((*PYTHON, "ruff", "check", "."), (*PYTHON, "ruff", "format", "--check", "."))),
    ("types", ((*PYTHON, "mypy"),)),
    ("sizes", ((sys.executable, "tools/sizes.py"),)),
)
# Parts of the tests: folders below tests/; "." is the files that lie in tests/ itself.
TESTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("house", (".",)),
    ("ops", ("ops",)),
    ("rooms", ("flow", "formats", "cache", "ledger", "report", "cli")),
    ("models", ("hf", "study")),
)
PARTS = tuple(name for name, _ in (*CHECKS, *TESTS))

Counts = tuple[int, int, int]  # passed, failed, skipped
WORDS = (("passed",), ("failed", "error", "errors"), ("skipped",))


@dataclass(frozen=True)
class Result:
    part: str
    ok: bool
    seconds: float
    counts: Counts = (0, 0, 0)
    why: str = ""


def run(command: Sequence[str], root: Path) -> tuple[int, list[str]]:
    """The exit code and the lines printed; they are shown as they come."""
    print(f"$ {' '.join(command)}", flush=True)
    lines = []
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def counts(lines: Iterable[str]) -> Counts | None:
    """What pytest's last line says ("3 passed, 1 skipped in 0.10s"); None if there is no such line."""
    for line in reversed(list(lines)):
        if re.search(r" in \d[\d.]*s", line):
            found = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", line)}
            passed, failed, skipped = (sum(found.get(word, 0) for word in words) for words in WORDS)
            return passed, failed, skipped
    return None


def hidden(lines: Iterable[str]) -> list[str]:
    """The skips that may not happen on CI, as pytest -rs prints them: "SKIPPED [1] tests/test_a.py:3: no nvcc"."""
    reasons = ((line, re.match(r"SKIPPED \[\d+\] \S+: (.*)", line)) for line in lines)
    return [line for line, reason in reasons if reason and any(name in reason[1].lower() for name in NEEDED)]


def targets(folders: Sequence[str], root: Path) -> list[str]:
    """What pytest is given. A folder that is not there is an error of pytest, not a part that passes."""
    tests = root / "tests"
    files = [f"tests/{file.name}" for file in sorted(tests.glob("test_*.py"))] if "." in folders else []
    return files + [f"tests/{folder}" for folder in folders if folder != "."]


def homeless(root: Path) -> list[str]:
    """Folders of tests that no part runs."""
    listed = {folder for _, folders in TESTS for folder in folders}
    folders = {file.relative_to(root / "tests").parts[0] for file in (root / "tests").glob("*/**/test_*.py")}
    return sorted(folders - listed)


def check(part: str, commands: Sequence[Sequence[str]], root: Path) -> Result:
    start = time.perf_counter()
    codes = [run(command, root)[0] for command in commands]
    return Result(part, not any(codes), time.perf_counter() - start)


def test(part: str, folders: Sequence[str], root: Path, environment: Mapping[str, str]) -> Result:
    start = time.perf_counter()
    code, lines = run((*PYTHON, "pytest", "-rs", *targets(folders, root)), root)
    seconds = time.perf_counter() - start
    found = counts(lines) or (0, 0, 0)
    why = {0: "", 1: "", 5: "no test was collected"}.get(code, f"pytest ended with {code}")
    if environment.get("CI") == "true" and hidden(lines):
        why = "; ".join([*([why] if why else []), *hidden(lines)])
    return Result(part, code == 0 and not why, seconds, found, why)


def summary(results: Sequence[Result]) -> str:
    """The table, and alone on the last line the sum of the tests."""
    rows: list[tuple[str, ...]] = [("part", "result", "seconds", "passed", "failed", "skipped")]
    for r in results:
        tested = [str(n) for n in r.counts] if any(r.counts) else ["", "", ""]
        rows.append((r.part, "ok" if r.ok else "FAILED", f"{r.seconds:.1f}", *tested))
    spent = sum(r.seconds for r in results)
    over = "over the" if spent > BUDGET else "of a"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(
            c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    reasons = [f"{r.part}: {r.why}" for r in results if r.why]
    passed, failed, skipped = (sum(r.counts[i] for r in results) for i in range(3))
    failed += sum(not r.ok and not r.counts[1] for r in results)
    return "\n".join(
        [
            *table,
            *reasons,
            f"{spent:.0f} s {over} budget of {BUDGET} s",
            f"{passed} passed, {failed} failed, {skipped} skipped",
        ]
    )


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="lint, types, sizes and the tests in parts")
    parser.add_argument("--only", default=",".join(PARTS), help=f"comma-separated parts of {','.join(PARTS)}")
    wanted = [part for part in parser.parse_args(arguments).only.split(",") if part]
    unknown = [part for part in wanted if part not in PARTS]
    if unknown or not wanted:
        parser.error(f"--only names {', '.join(unknown) or 'no part'}; allowed: {', '.join(PARTS)}")
    results = [check(part, commands, root) for part, commands in CHECKS if part in wanted]
    results += [test(part, folders, root, os.environ) for part, folders in TESTS if part in wanted]
    if homeless(root) and any(part in wanted for part, _ in TESTS):
        results.append(Result("homeless", False, 0.0, why=f"no part runs tests/{', tests/'.join(homeless(root))}"))
    print(f"\n{summary(results)}", flush=True)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
