"""A reader never sees half a file: write beside it, then rename."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> Path:
    """Write `data` to `path` through a temporary neighbour, which is gone afterwards whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A plain open, not tempfile: the page should get the permissions of any other file of this user.
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)
    return path
