"""study.jsonl: one row per finished run or part of a section, written at once, so that a killed study resumes."""

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Of study.json.
SCHEMA = 2


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


class Store:
    """Rows of one study in `folder`. Raises ValueError where the folder cannot be written."""

    def __init__(self, folder: Path, key: dict[str, Any], fresh: bool = False) -> None:
        self.folder, self.path = folder, folder / "study.jsonl"
        self.key = json.loads(json.dumps(plain(key)))
        writable(folder)
        rows = list(_rows(self.path))
        if rows and (fresh or rows[0].get("key") != self.key):
            # Another study's rows are kept beside, never overwritten.
            self.path.replace(_free_name(folder))
            rows = []
        self.rows = rows
        if not rows:
            self._write({"type": "study", "key": self.key})
        elif len(rows) < _lines(self.path):
            # A run that was killed in the middle of a write leaves half a line: drop it. So is a line that a
            # disk or an editor has damaged; the rows after it stand for themselves.
            whole = "".join(json.dumps(row) + "\n" for row in rows)
            partial = self.path.with_suffix(".part")
            partial.write_text(whole)
            partial.replace(self.path)

    def runs(self) -> dict[str, dict[str, Any]]:
        return {row["run"]["name"]: row["run"] for row in self.rows if row["type"] == "run"}

    def traced(self) -> dict[str, dict[str, Any]]:
        """What was kept of the runs whose selections were recorded: timeline and overlaps."""
        return {row["run"]["name"]: row["traced"] for row in self.rows if row["type"] == "run" and row["traced"]}

    def add(self, run: dict[str, Any], traced: dict[str, Any] | None = None) -> None:
        """Append one finished run; it is on the disk when this returns."""
        self._write({"type": "run", "run": run, "traced": traced})

    def part(self, section: str, name: str, settings: Any, make: Callable[[], Any]) -> Any:
        """What `make` returned when it ran with these settings (plain values), here or in the run before."""
        label = {"type": "part", "section": section, "name": name, "settings": json.loads(json.dumps(plain(settings)))}
        for row in reversed(self.rows):
            if all(row.get(key) == value for key, value in label.items()):
                return row["data"]
        data = plain(make())
        self._write(label | {"data": data})
        return data

    def was_full(self) -> bool:
        """Whether all sections were finished here before."""
        return any(row["type"] == "full" for row in self.rows)

    def mark(self, full: bool) -> None:
        """Say that all sections are finished, if they were asked for."""
        if full and not self.was_full():
            self._write({"type": "full"})

    def finish(self, study: dict[str, Any]) -> Path:
        """study.json, whole or not at all."""
        return write_study(self.folder, study)

    def _write(self, row: dict[str, Any]) -> None:
        row = plain(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


def write_study(folder: Path, study: dict[str, Any]) -> Path:
    """Write study.json whole, or not at all."""
    target = folder / "study.json"
    partial = target.with_suffix(".part")
    partial.write_text(json.dumps(plain(study), indent=1, allow_nan=False) + "\n")
    partial.replace(target)
    return target


def writable(folder: Path) -> None:
    """Make the folder and prove that a file can be made in it. Raises ValueError."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"out is {folder}: cannot write there ({error.strerror})") from error


def read_study(path: Path) -> dict[str, Any]:
    """A finished study: `path` is its folder or its study.json. Raises ValueError for what is none."""
    file = path / "study.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"study is {path}: no study.json there; run `tilesieve study --out {path}` first")
    try:
        study = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"study is {file}: not JSON ({error})") from error
    if not isinstance(study, dict) or not isinstance(study.get("meta"), dict) or "schema" not in study:
        raise ValueError(f"study is {file}: no study; it lacks meta or schema")
    if study["schema"] != SCHEMA:
        raise ValueError(f"study is {file}: of schema {study['schema']}; this version reads {SCHEMA}: run it again")
    parts = {"runs": list, "findings": list, "timeline": list, "sections": dict}
    bad = [name for name, kind in parts.items() if not isinstance(study.get(name), kind)]
    bad += [f"runs[{n}]" for n, run in enumerate(study.get("runs") or []) if not _is_run(run)]
    if bad:
        raise ValueError(f"study is {file}: {bad[0]} is missing or damaged; run the study again")
    return study


def _is_run(run: Any) -> bool:
    return isinstance(run, dict) and all(isinstance(run.get(key), str) for key in ("name", "label", "family"))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of the file, without lines that are none; nothing where the first does not say what study it is."""
    if path.is_file():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(keepends=True)):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                row = None
            if isinstance(row, dict) and "type" in row and line.endswith("\n"):
                yield row
            elif number == 0:
                return


def _lines(path: Path) -> int:
    return len(path.read_text(errors="replace").splitlines())


def _free_name(folder: Path) -> Path:
    return next(p for n in range(1, 10**6) if not (p := folder / f"study.{n}.jsonl").exists())
