"""Needles by hand, the constructed case of approximate selection, and the section on a tiny model."""

import math
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tilesieve.hf.attention import forward
from tilesieve.hf.load import Checkpoint, default_model
from tilesieve.hf.session import Seen, Session
from tilesieve.ops.topk.op import topk
from tilesieve.policies import Policy, window
from tilesieve.study import retrieval as section
from tilesieve.study.bench import Bench
from tilesieve.study.needles import Needle, Question, encode, plant, tokens_of
from tilesieve.study.plan import Plan
from tilesieve.study.run import encode as encode_text
from tilesieve.study.store import Store
from tilesieve.study.texts import hamlet, read_text
from tilesieve.types import Selection

TOKENS = 160


def bench_of(folder, text, **plan):
    plan = Plan(folder, text, **{"tokens": TOKENS, "steps": 2, "budgets": (16,), "budget": 16, **plan})
    checkpoint = Checkpoint.open(folder)
    return Bench(plan, checkpoint, encode_text(checkpoint.tokenizer, read_text(text), plan, text), lambda *_: None)


@pytest.fixture(scope="module")
def tiny_bench(model_folder, text_file):
    return bench_of(model_folder, text_file, full=True)


def digits():
    """A tokenizer that knows the sentence and single digits."""
    words = ["<unk>", *"0123456789", "The", "secret", "code", "of", "the", "lighthouse", "is", "."]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_needle_by_hand(depth):
    """7 tokens of sentence, 6 digits and a full stop; asked: 7 and 6. 100 - 14 - 13 = 73 tokens of text."""
    question = Question.of(digits())
    assert (len(question.intro), question.size) == (7, 6)
    text = torch.arange(1000, 1200)
    needle = plant(question, text, 100, depth, seed=4)
    at = round(73 * depth)
    assert len(needle.ids) == 100 and (needle.question, needle.asked, needle.planted) == (87, 94, at + 7)
    planted, asked = needle.ids[at : at + 13], needle.ids[87:]
    assert torch.equal(planted, asked) and len(planted[7:].unique()) == 6
    hay = torch.cat([needle.ids[:at], needle.ids[at + 14 : 87]])
    assert torch.equal(hay, text[:73])


def test_strings_are_seeded():
    question, text = Question.of(digits()), torch.arange(1000, 1200)
    drawn = [plant(question, text, 100, 0.5, seed).ids.tolist() for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_words_where_a_tokenizer_has_no_digits(tiny_bench):
    question = Question.of(tiny_bench.tokenizer)
    needle = plant(question, tiny_bench.ids, 100, 0.5, seed=1)
    string = needle.ids[needle.asked :].tolist()
    assert len(set(string)) == 4 and 0 not in string
    assert needle.ids[needle.planted : needle.planted + 4].tolist() == string


def test_a_string_tokenised_otherwise_when_planted_is_refused():
    class Merging:
        """Letters and digits are tokens, but a digit before a full stop is one token with it."""

        def __call__(self, text, add_special_tokens):
            ids = [ord(c) for c in text]
            if "." in text:
                dot = text.index(".")
                ids[dot - 1 : dot + 1] = [1000 + ids[dot - 1]]
            return SimpleNamespace(input_ids=ids)

        def decode(self, ids):
            return "".join(map(chr, ids))

    start = encode(Merging(), "\nThe secret code of the lighthouse is ")
    assert tokens_of(Merging(), start, "12") is None
    with pytest.raises(ValueError, match="tokenizer is Merging: a random string is tokenised differently"):
        Question.of(Merging())


@pytest.mark.parametrize(
    ("length", "depth", "tokens", "said"),
    [(51, 0.5, 200, "length is 51; allowed: at least 52"), (100, 1.5, 200, "depth is 1.5; allowed: 0 to 1"),
     (100, 0.5, 72, "text has 72 tokens; 73 are needed")],
)  # fmt: skip
def test_bad_needles(length, depth, tokens, said):
    with pytest.raises(ValueError, match=said):
        plant(Question.of(digits()), torch.arange(tokens), length, depth, 0)


def test_graded_by_hand():
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [0.0, 0.0]])
    logprob, right = section.graded(logits, torch.tensor([1, 0, 0]))
    assert logprob == pytest.approx((math.log(0.75) + math.log(0.25) + math.log(0.5)) / 3)
    assert right == pytest.approx(2 / 3)  # the tie of the last row goes to the first token


def test_held_by_hand():
    """Two heads, two asked rows, planted at 1 and 2: head 0 holds both, head 1 the second: 3 of 4."""
    needle = Needle(torch.arange(6), question=3, planted=1, asked=4, size=2)
    index = torch.tensor([[[1, -1], [0, 3]], [[1, 2], [2, 4]], [[2, 0], [2, 5]]], dtype=torch.int32)
    # Rows at 2, 3, 4; the last two are asked: their places to copy are 1 and 2.
    selection = Selection(index, torch.full((3, 2), 2), None, "position")
    zeros = torch.zeros(1, 5, 1)
    assert section.held(Seen(0, 2, torch.zeros(3, 2, 1), zeros, zeros, 1.0, (selection,)), needle) == 0.75


def test_the_answer_is_ninth_of_its_block_and_among_the_k_best():
    scores = section.coarse_scores()
    block = scores[64:128]
    assert section.ANSWER == 100 and int((block > scores[100]).sum()) == 8
    assert int((scores > scores[100]).sum()) == 8 < section.K
    # The whole set is chosen: no tie at its border lets another in.
    best = topk(scores[None], k=64).index[0]
    assert 100 in best.tolist() and float(scores[best.long()].min()) >= 1.0


def test_constructed_by_hand():
    """Lost, the output is (0, 1) instead of (1, 0) but for 8 e^-11: off by sqrt 2."""
    rows = {row["local_k"]: row for row in section.constructed()["rows"]}
    assert [rows[k]["kept"] for k in (4, 8, 9, 16)] == [False, False, True, True]
    assert rows[8]["error"] == pytest.approx(math.sqrt(2), rel=1e-3)  # 8 e^-11 = 1.3e-4 of the rivals
    assert rows[16]["error"] == 0.0


def test_everything_selected_answers_as_dense_does(tiny_bench):
    """Rows after a dense prompt that select all they see; and a window far from the needle holds nothing."""
    needle = plant(Question.of(tiny_bench.tokenizer), tiny_bench.ids, TOKENS, 0.1, seed=1)
    prompt = Session.new(tiny_bench.shape, None, tokens=TOKENS, prompt=needle.question)
    forward(tiny_bench.model, needle.ids[: needle.question], prompt, "prefill")
    dense, full, recent = (
        section.answer(tiny_bench.model, prompt.branch(policy), needle)
        for policy in (None, Policy(k=TOKENS), window(8))
    )
    assert full.logprob == pytest.approx(dense.logprob, abs=1e-5) and full.held == dense.held == 1.0
    assert recent.held == 0.0 and recent.logprob != pytest.approx(dense.logprob, abs=1e-3)
    # The prompt's own session is as it was: dense again, to the bit.
    assert section.answer(tiny_bench.model, prompt.branch(None), needle) == dense


def test_dense_answers_are_the_models_own(tiny_bench):
    """Prompt and question in two goes, against one pass over all of it."""
    needle = plant(Question.of(tiny_bench.tokenizer), tiny_bench.ids, TOKENS, 0.5, seed=2)
    whole = Session.new(tiny_bench.shape, None, tokens=TOKENS)
    logits = forward(tiny_bench.model, needle.ids, whole, "dense", keep=needle.size + 1)[:-1]
    prompt = Session.new(tiny_bench.shape, None, tokens=TOKENS)
    forward(tiny_bench.model, needle.ids[: needle.question], prompt, "prefill")
    found = section.answer(tiny_bench.model, prompt.branch(None), needle)
    assert found.logprob == pytest.approx(section.graded(logits, needle.ids[needle.asked :])[0], abs=1e-5)


def test_the_section(tiny_bench, tmp_path, model_folder, text_file):
    store = Store(tmp_path, {})
    found = section.retrieval(tiny_bench, store)
    assert found["lengths"] == [TOKENS] and found["depths"] == [0.1, 0.3, 0.5, 0.7, 0.9] and found["samples"] == 2
    assert found["needle_tokens"] == 4 and found["k"] == 16
    names = [run["name"] for run in found["runs"]]
    assert names[0] == "dense" and names[-1] == "window" and len(names) == len(set(names)) >= 8
    for run in found["runs"]:
        assert [cell["depth"] for cell in run["cells"]] == found["depths"]
        for cell in run["cells"]:
            assert cell["logprob"] <= 0 and 0 <= cell["right"] <= 1 and 0 <= cell["held"] <= 1
    assert {cell["held"] for cell in found["runs"][0]["cells"]} == {1.0}
    # A finished section needs no model.
    again = bench_of(model_folder, text_file, full=True)
    assert section.retrieval(again, store) == found and again._model is None


def test_without_full_one_length_and_three_depths(model_folder, text_file, tmp_path):
    found = section.retrieval(bench_of(model_folder, text_file), Store(tmp_path, {}))
    assert found["lengths"] == [TOKENS] and found["depths"] == [0.1, 0.5, 0.9] and found["samples"] == 1


def test_a_text_too_short_for_a_needle_is_said(model_folder, text_file, tmp_path):
    found = section.retrieval(bench_of(model_folder, text_file, tokens=32), Store(tmp_path, {}))
    assert found["runs"] == [] and "there are 32" in found["note"] and len(found["constructed"]["rows"]) == 4


def test_lengths(tiny_bench):
    def lengths(tokens, full, context=8192):
        shape = SimpleNamespace(context=context)
        plan = Plan(tokens=tokens, budget=64, budgets=(64,), full=full)
        return section.lengths_of(plan, shape, 52)

    assert lengths(4096, True) == (512, 1024, 2048, 4096) and lengths(4096, False) == (512,)
    assert lengths(1024, True) == (512, 1024) and lengths(600, True) == (512, 600)
    assert lengths(4096, True, context=1500) == (512, 1024, 1500)


@pytest.mark.model
def test_a_real_model_finds_what_it_sees_and_not_what_it_does_not():
    plan = Plan(tokens=256, budget=32, budgets=(32,))
    checkpoint = Checkpoint.open(default_model())
    text = hamlet()
    bench = Bench(plan, checkpoint, encode_text(checkpoint.tokenizer, read_text(text), plan, text), lambda *_: None)
    question = Question.of(checkpoint.tokenizer)
    assert question.size == 6 and checkpoint.tokenizer.decode(list(question.intro)).endswith("is ")
    steps = section.ladder_and_window(plan, bench.shape, 256)
    found = section.cell(bench, question, steps, 256, 0.3, 1)
    assert found["dense"]["right"] == 1.0 and found["dense"]["logprob"] > -0.2
    # Six different digits cannot be guessed: 1 in 10 is -2.3.
    assert found["window"]["logprob"] < -2.0 and found["window"]["held"] == 0.0
    assert found["shared"]["logprob"] > found["window"]["logprob"] + 1.0
