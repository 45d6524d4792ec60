"""Needles: a random string planted in a text and asked for at its end. Average text hides what is lost of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The question repeats the sentence up to the string, so that a model that only continues text can answer it.
SENTENCE = "\nThe secret code of the lighthouse is"
END = ".\n"
# Digits of a string, each once: every token of it then has one place to be copied from. Words where a tokenizer
# has no digits.
DIGITS, WORDS = 6, 4
TRIES = 100


@dataclass(frozen=True)
class Question:
    """intro: tokens of the sentence before the string; words: what strings are made of, () for digits; size: tokens
    of a string."""

    tokenizer: Any
    intro: tuple[int, ...]
    words: tuple[str, ...]
    size: int

    @classmethod
    def of(cls, tokenizer: Any) -> "Question":
        """For this tokenizer. Raises ValueError where strings are never tokenised alike when planted and asked for."""
        words = () if knows_digits(tokenizer) else vocabulary(tokenizer)
        if not words and not knows_digits(tokenizer):
            raise ValueError(f"tokenizer is {type(tokenizer).__name__}: it knows neither digits nor {WORDS} words")
        generator = torch.Generator().manual_seed(0)
        # A space that is a token of its own is no secret: it belongs to the sentence.
        for intro in (SENTENCE + " ", SENTENCE):
            start = encode(tokenizer, intro)
            for _ in range(TRIES):
                found = tokens_of(tokenizer, start, string(generator, words))
                if found is not None:
                    return cls(tokenizer, tuple(start), words, len(found[1]))
        raise ValueError(f"tokenizer is {type(tokenizer).__name__}: a random string is tokenised differently where "
                         "it is planted and where it is asked for")  # fmt: skip

    def draw(self, generator: torch.Generator) -> tuple[list[int], list[int]]:
        """Tokens of a planted sentence, and of its string. The sentence begins with intro and the string."""
        for _ in range(TRIES):
            found = tokens_of(self.tokenizer, list(self.intro), string(generator, self.words))
            if found is not None and len(found[1]) == self.size:
                return found
        raise ValueError(f"tokenizer is {type(self.tokenizer).__name__}: {TRIES} random strings, none of "
                         f"{self.size} tokens")  # fmt: skip

    def least(self) -> int:
        """Tokens that a text with a needle has at least: both sentences, and as much to hide the first in."""
        return 4 * (len(self.intro) + self.size)


@dataclass(frozen=True)
class Needle:
    """ids [length]: text, planted sentence, text, question, string.

    question: position of the question's first token; planted, asked: those of the string's first token; size: its
    tokens.
    """

    ids: Tensor
    question: int
    planted: int
    asked: int
    size: int


def plant(question: Question, text: Tensor, length: int, depth: float, seed: int) -> Needle:
    """A needle at `depth` (0 to 1) of the first tokens of `text` [T]; length tokens in all.

    Raises ValueError for a length that has no room for it, a depth outside 0..1, a text that is too short.
    """
    if not 0.0 <= depth <= 1.0:
        raise ValueError(f"depth is {depth}; allowed: 0 to 1")
    if length < question.least():
        raise ValueError(f"length is {length}; allowed: at least {question.least()} tokens")
    sentence, answer = question.draw(torch.Generator().manual_seed(seed))
    ask = [*question.intro, *answer]
    hay = length - len(sentence) - len(ask)
    if len(text) < hay:
        raise ValueError(f"text has {len(text)} tokens; {hay} are needed around a needle")
    at = round(depth * hay)
    parts = (text[:at], torch.tensor(sentence), text[at:hay], torch.tensor(ask))
    return Needle(torch.cat(parts), length - len(ask), at + len(question.intro), length - len(answer), len(answer))


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def tokens_of(tokenizer: Any, intro: list[int], answer: str) -> tuple[list[int], list[int]] | None:
    """Tokens of the planted sentence and of the string in it; None where asking would tokenise it otherwise."""
    asked = encode(tokenizer, f"{SENTENCE} {answer}")
    planted = encode(tokenizer, f"{SENTENCE} {answer}{END}")
    if asked[: len(intro)] != intro or planted[: len(asked)] != asked or len(asked) == len(intro):
        return None
    return planted, asked[len(intro) :]


def string(generator: torch.Generator, words: tuple[str, ...]) -> str:
    """Different digits, or different words."""
    if words:
        return " ".join(words[n] for n in torch.randperm(len(words), generator=generator)[:WORDS].tolist())
    return "".join(str(n) for n in torch.randperm(10, generator=generator)[:DIGITS].tolist())


def knows_digits(tokenizer: Any) -> bool:
    """Whether digits survive the way to tokens and back."""
    return "0123456789" in tokenizer.decode(encode(tokenizer, "0123456789")).replace(" ", "")


def vocabulary(tokenizer: Any) -> tuple[str, ...]:
    """Words that are one token each; () for fewer than a string takes."""
    known = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 1)
    words = tuple(word for word in known if len(encode(tokenizer, word)) == 1)
    return words if len(words) >= WORDS else ()
