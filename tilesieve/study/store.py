"""study.jsonl: one row per finished run, written at once, so that a killed study resumes."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
            # A run that was killed in the middle of a write leaves half a line: drop it.
            whole = "".join(json.dumps(row) + "\n" for row in rows)
            partial = self.path.with_suffix(".part")
            partial.write_text(whole)
            partial.replace(self.path)

    def runs(self) -> dict[str, dict[str, Any]]:
        return {row["run"]["name"]: row["run"] for row in self.rows if row["type"] == "run"}

    def timeline(self) -> list[dict[str, Any]]:
        return [entry for row in self.rows if row["type"] == "run" for entry in row["timeline"]]

    def add(self, run: dict[str, Any], timeline: list[dict[str, Any]]) -> None:
        """Append one finished run; it is on the disk when this returns."""
        self._write({"type": "run", "run": run, "timeline": timeline})

    def finish(self, study: dict[str, Any]) -> Path:
        """Write study.json whole, or not at all."""
        target = self.folder / "study.json"
        partial = target.with_suffix(".part")
        partial.write_text(json.dumps(plain(study), indent=1, allow_nan=False) + "\n")
        partial.replace(target)
        return target

    def _write(self, row: dict[str, Any]) -> None:
        row = plain(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


def writable(folder: Path) -> None:
    """Make the folder and prove that a file can be made in it. Raises ValueError."""
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ValueError(f"out is {folder}: cannot write there ({error.strerror})") from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The whole rows of the file; stops at the first that is not."""
    if path.is_file():
        for line in path.read_text(errors="replace").splitlines(keepends=True):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                return
            if not line.endswith("\n") or not isinstance(row, dict) or "type" not in row:
                return
            yield row


def _lines(path: Path) -> int:
    return len(path.read_text(errors="replace").splitlines())


def _free_name(folder: Path) -> Path:
    return next(p for n in range(1, 10**6) if not (p := folder / f"study.{n}.jsonl").exists())
