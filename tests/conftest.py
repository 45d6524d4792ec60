"""Shared: a seed per test, and a tiny model folder with a tokenizer and a text: a whole study in seconds."""

import os
import zlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def seed(request):
    """Each test draws from its own seed, derived from its name."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


WORDS = [
    "the",
    "king",
    "and",
    "queen",
    "of",
    "night",
    "walk",
    "to",
    "castle",
    "with",
    "a",
    "ghost",
    "who",
    "was",
    "not",
    "there",
    "again",
    "until",
    "dawn",
    "broke",
]


def prose(words: int, seed: int = 0) -> str:
    import random

    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A folder as transformers writes it: config.json, safetensors, tokenizer."""
    from models import tiny
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    vocabulary = {"<unk>": 0, **{word: n + 1 for n, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    tiny("llama").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "prose.txt"
    path.write_text(prose(600))
    return path
