"""Print how big the rooms are; exit 1 when a Python file is longer than LIMIT lines.

Usage: python tools/sizes.py [ROOT]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

LIMIT = 400
TREES = ("tilesieve", "tests")


def line_counts(root: Path) -> dict[str, int]:
    """Lines of every Python file under the trees, by its path from `root`."""
    files = (file for tree in TREES for file in sorted((root / tree).rglob("*.py")))
    return {f.relative_to(root).as_posix(): len(f.read_text(encoding="utf-8").splitlines()) for f in files}


def room_of(path: str) -> str:
    """ "tilesieve/ops" for "tilesieve/ops/gate/op.py", "tilesieve" for "tilesieve/cost.py"."""
    return "/".join(path.split("/")[:-1][:2])


def too_long(counts: Mapping[str, int], limit: int = LIMIT) -> list[str]:
    return [path for path, lines in counts.items() if lines > limit]


def table(counts: Mapping[str, int]) -> str:
    rooms: dict[str, list[str]] = {}
    for path in counts:
        rooms.setdefault(room_of(path), []).append(path)
    rows = [("room", "files", "lines", "median", "longest", "longest file")]
    for room, paths in [*sorted(rooms.items()), ("all", list(counts))]:
        lines = [counts[path] for path in paths]
        longest = max(paths, key=lambda path: counts[path], default="")
        middle = f"{median(lines):.0f}" if lines else "0"
        rows.append((room, str(len(paths)), str(sum(lines)), middle, str(max(lines, default=0)), longest))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < i < 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1]
    counts = line_counts(root)
    print(table(counts))
    for path in too_long(counts):
        print(f"{path}: {counts[path]} lines, the limit is {LIMIT}", file=sys.stderr)
    return 1 if too_long(counts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
