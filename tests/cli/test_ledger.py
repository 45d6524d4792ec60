"""`tilesieve ledger`: tables, JSON, and what wrong values say."""

import json

import pytest

from tilesieve.cli.main import main
from tilesieve.ledger import total
from tilesieve.ledger.models import LLAMA31_8B, SMOLLM2_135M
from tilesieve.ledger.step import Step, decode_step


def printed(capsys, *arguments):
    assert main(["ledger", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    return shown.out


def test_both_sides_and_the_verdict(capsys):
    text = printed(capsys)
    assert text.count("SmolLM2-135M, one decode step at 32768 positions, batch 1") == 2
    assert "gqa_decode" in text and "sparse_gqa" in text and "lowrank" in text
    assert "Floors: dense " in text and "sparse pays from a context of " in text
    assert "k = 28160" in text  # 32768 * (256 - 36) / 256
    assert text.count("peaks datasheet") == text.count("MB = 1e6 B") == 2


def test_json_is_the_rows(capsys):
    arguments = ("--model", "Llama-3.1-8B", "--context", "4096", "--batch", "2", "--k", "128", "--json")
    found = json.loads(printed(capsys, *arguments, "--score-format", "score_bf16", "--d-score", "16"))
    step = Step(4096, 2, 128, 16, "score_bf16")
    for side, expected in (("dense", Step(4096, 2)), ("sparse", step)):
        rows = decode_step(LLAMA31_8B, expected)
        assert [row["what"] for row in found[side]["rows"]] == [row.op for row in rows]
        assert found[side]["bytes_min"] == sum(r["bytes_min"] for r in found[side]["rows"]) == total(rows).bytes_min
        assert found[side]["flops"] == total(rows).flops
        assert found[side]["floor_seconds"] == pytest.approx(sum(r["floor_seconds"] for r in found[side]["rows"]))
    assert found["chip"]["kind"] == "datasheet" and found["graph"] is True
    assert found["step"]["score_format"] == "score_bf16"
    assert found["k_limit"] == 4096 * (512 - 32) // 512


def test_a_config_file_is_a_model(capsys, tmp_path):
    config = {
        "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads(printed(capsys, "--model", str(tmp_path / "config.json"), "--json"))
    assert found["dense"]["bytes_min"] == total(decode_step(SMOLLM2_135M, Step())).bytes_min


def test_the_options_reach_the_numbers(capsys):
    def floor(*arguments):
        return json.loads(printed(capsys, "--json", *arguments))["sparse"]["floor_seconds"]

    base = floor()
    assert floor("--eager") > base
    assert floor("--chip", "H200-measured") > base
    assert floor("--packed") == pytest.approx(base + 30e-6)  # one more launch a layer
    assert floor("--share", "q_head", "--batch", "64") > floor("--batch", "64") > base


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--k", "0"), "k is 0; allowed: an integer >= 1"),
        (("--context", "-5"), "context is -5; allowed: an integer >= 1"),
        (("--batch", "0"), "batch is 0; allowed"),
        (("--d-score", "65"), "d_score is 65; allowed: 1 to 64"),
        (("--score-format", "int8"), "score_format is 'int8'; allowed: score_fp32, score_bf16, score_int8, score_fp8"),
        (("--share", "head"), "share is 'head'; allowed: layer, kv_head, q_head"),
        (("--chip", "A100"), "chip is 'A100'; allowed: H200, H200-measured"),
        (("--model", "gpt"), "model is 'gpt'; allowed: SmolLM2-135M, Llama-3.1-8B, or the path of a config.json"),
        (("--model", "nowhere/config.json"), "config: there is no file nowhere/config.json"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_wrong_values_name_the_argument(capsys, arguments, text, form):
    assert main(["ledger", *arguments, *form]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {text}") and shown.err.count("\n") == 1
    assert shown.out == ""


@pytest.mark.parametrize("arguments", [("--k", "many"), ("--contxt", "5"), ("extra",)])
def test_what_is_no_option_is_exit_2(capsys, arguments):
    assert main(["ledger", *arguments]) == 2
    assert arguments[-1 if len(arguments) == 1 else 0] in capsys.readouterr().err
