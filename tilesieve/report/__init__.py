"""study.json -> one HTML page that needs no network, and PNGs for a README.

A pure function of data: it imports its plotting libraries and nothing else of tilesieve. The imports are inside
the functions, so that `import tilesieve.report` costs nothing.
"""

from pathlib import Path
from typing import Any

__all__ = ["write_compare", "write_pngs", "write_report"]


def write_report(study: dict[str, Any], path: Path) -> Path:
    """Write the page for one study to `path`, whole or not at all, and return the path."""
    from tilesieve.report.files import write_whole
    from tilesieve.report.page import page

    return write_whole(Path(path), page(study).encode("utf-8", "xmlcharrefreplace"))


def write_compare(a: dict[str, Any], b: dict[str, Any], path: Path) -> Path:
    """Write the page that holds study `b` against study `a` to `path`, whole or not at all, and return the path."""
    from tilesieve.report.compare import page
    from tilesieve.report.files import write_whole

    return write_whole(Path(path), page(a, b).encode("utf-8", "xmlcharrefreplace"))


def write_pngs(study: dict[str, Any], folder: Path) -> list[Path]:
    """Write a picture per question to `folder`, leaving out those with nothing to show, and return their paths.

    A picture of an earlier study that this one has no numbers for is removed.
    """
    from tilesieve.report.files import write_whole
    from tilesieve.report.png import PICTURES, pictures

    written = [write_whole(Path(folder) / name, data) for name, data in pictures(study)]
    for name, _ in PICTURES:
        if Path(folder) / name not in written:
            (Path(folder) / name).unlink(missing_ok=True)
    return written
