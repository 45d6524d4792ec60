"""What a study refuses, and how it says so: exit code 2, one line, nothing lost."""

import json
import os
import shutil
import subprocess
import sys

import pytest


def tilesieve(*args, cwd=None):
    command = [sys.executable, "-m", "tilesieve", "study", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "300"})


def damaged(folder, tmp_path, what):
    """A copy of the model with one thing wrong."""
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    weights = copy / "model.safetensors"
    config = json.loads((copy / "config.json").read_text())
    if what == "truncated":
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    elif what == "no weights":
        weights.unlink()
    elif what == "no config":
        (copy / "config.json").unlink()
    elif what == "config is no JSON":
        (copy / "config.json").write_text("{")
    elif what == "no model type":
        del config["model_type"], config["architectures"]
        (copy / "config.json").write_text(json.dumps(config))
    elif what == "encoder":
        (copy / "config.json").write_text(json.dumps({"model_type": "bert", "hidden_size": 64}))
    elif what == "encoder-decoder":
        (copy / "config.json").write_text(json.dumps({"model_type": "t5"}))
    elif what == "latents":
        (copy / "config.json").write_text(json.dumps({"model_type": "deepseek_v3"}))
    elif what == "no tokenizer":
        for path in copy.glob("tokenizer*"):
            path.unlink()
    return copy


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("truncated", "model is"), ("no weights", "model is"), ("no config", "has no config.json"),
        ("config is no JSON", "the configuration"), ("no model type", "the configuration"),
        ("encoder", "bert has no decoder"), ("encoder-decoder", "t5 is an encoder-decoder"),
        ("latents", "deepseek_v3 caches latents"), ("no tokenizer", "the tokenizer"),
    ],
)  # fmt: skip
def test_bad_models(model_folder, text_file, tmp_path, what, said):
    copy = damaged(model_folder, tmp_path, what)
    refused(tilesieve("--model", copy, "--text", text_file, "--tokens", 64, "--out", tmp_path / "out"), said)


def test_a_model_whose_layers_are_all_windows(model_folder, text_file, tmp_path):
    from models import tiny

    folder = shutil.copytree(model_folder, tmp_path / "model")
    tiny("mistral").save_pretrained(folder)
    done = tilesieve("--model", folder, "--text", text_file, "--tokens", 64, "--budgets", "8", "--k", "8",
                     "--out", tmp_path / "out")  # fmt: skip
    refused(done, "every layer limits itself to a window")


def test_rotary_pairs_of_a_model_without_a_rope(model_folder, text_file, tmp_path):
    from models import tiny

    folder = shutil.copytree(model_folder, tmp_path / "model")
    tiny("gpt2").save_pretrained(folder)
    options = ("--model", folder, "--text", text_file, "--tokens", 64, "--budgets", "8", "--k", "8", "--steps", 2)
    refused(tilesieve(*options, "--scoring", "pairs_slow", "--out", tmp_path / "a"), "gpt2 keys have 0 dimensions")
    done = tilesieve(*options, "--out", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert "pca d8 int8" in done.stdout


def refused(done, said):
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGUF" + b"\x03\0\0\0" + b"\xff" * 40, "truncated or damaged GGUF"),
        (b"PK\x03\x04 not a model", "a GGUF file begins with b'GGUF'"),
        (b"", "a GGUF file begins with b'GGUF'"),
    ],
)
def test_bad_gguf(tmp_path, text_file, content, said):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    refused(tilesieve("--model", path, "--text", text_file, "--out", tmp_path / "out"), said)


def test_a_truncated_copy_of_the_real_gguf(tmp_path, text_file):
    from tilesieve.hf.load import default_model

    whole = default_model()
    path = tmp_path / "half.gguf"
    with whole.open("rb") as source:
        path.write_bytes(source.read(whole.stat().st_size // 2))
    refused(tilesieve("--model", path, "--text", text_file, "--out", tmp_path / "out"), "truncated")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--text", "nowhere.txt"), "text is nowhere.txt: no such file"),
        (("--text", "latin.txt"), "not UTF-8: byte 0xe9 at offset 3"),
        (("--text", "empty.txt"), "it is empty"),
        (("--text", "short.txt"), "2 tokens; 64 are needed"),
        (("--k", "0"), "k is 0; allowed"),
        (("--budgets", "8,0"), "k is 0; allowed"),
        (("--budgets", "8,x"), "budgets is '8,x'"),
        (("--budgets", "8,8"), "allowed: each k once"),
        (("--d-score", "17"), "d_score is 17; the model's keys have 16 dimensions"),
        (("--d-score", "3", "--scoring", "pairs_slow"), "d_score is 3; allowed: an even number"),
        (("--d-score", "0"), "d_score is 0"),
        (("--scoring", "window"), "scoring is 'window'; allowed: prefix, pairs_slow"),
        (("--score-format", "int8"), "score_format is 'int8'; allowed: score_fp32"),
        (("--scoring", "best"), "scoring is 'best'; allowed: prefix, pairs_slow"),
        (("--score-format", "int8"), "format is 'int8'; allowed: score_fp32"),
        (("--tokens", "511"), "the model's context is 512"),
        (("--tokens", "3"), "tokens is 3; allowed"),
        (("--model", "nowhere"), "model is nowhere: no such file or folder"),
        (("--out", "file/sub"), "out is file/sub: cannot write there"),
    ],
)  # fmt: skip
def test_bad_arguments(model_folder, text_file, tmp_path, args, said):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("the king")
    (tmp_path / "file").write_text("")
    options = {"--model": model_folder, "--text": text_file, "--tokens": 64, "--out": "out", "--k": 8, "--budgets": "8"}
    options |= dict(zip(args[::2], args[1::2], strict=True))
    refused(tilesieve(*[part for pair in options.items() for part in pair], cwd=tmp_path), said)


def test_a_folder_that_may_not_be_written(model_folder, text_file, tmp_path):
    from tilesieve.study.store import writable

    if os.geteuid() == 0:
        # Root may write anywhere but into a file system of the kernel's.
        with pytest.raises(ValueError, match="cannot write there"):
            writable(__import__("pathlib").Path("/proc/tilesieve"))
        return
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot write there"):
        writable(tmp_path / "out")
