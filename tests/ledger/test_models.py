"""Model shapes: known parameter counts, KV bytes, and what a config.json may and may not say."""

import json

import pytest

from tilesieve.ledger.models import LLAMA31_8B, MODELS, SMOLLM2_135M, Model, from_config, model

SMOL = {
    "model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip


def written(folder, **changes):
    config = {name: value for name, value in {**SMOL, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


def test_parameters_are_the_published_counts():
    assert SMOLLM2_135M.parameters() == 134_515_008
    assert LLAMA31_8B.parameters() == 8_030_261_248


def test_kv_bytes_by_hand():
    assert SMOLLM2_135M.kv_bytes_per_token() == 30 * 2 * 3 * 64 * 2 == 23040
    assert SMOLLM2_135M.kv_bytes_per_token(4) == 46080
    assert LLAMA31_8B.kv_bytes_per_token() == 131072  # 128 KiB, GQA-8 of 4096 B a layer
    assert LLAMA31_8B.kv_bytes_per_token() == 32 * 4096


def test_a_config_gives_the_preset(tmp_path):
    read = from_config(written(tmp_path))
    assert read == Model(tmp_path.name, 30, 576, 9, 3, 64, 1536, 49152, tied=True)
    assert from_config(tmp_path) == read == model(str(tmp_path / "config.json"))
    assert read.parameters() == SMOLLM2_135M.parameters()


def test_defaults_and_families(tmp_path):
    plain = from_config(written(tmp_path, num_key_value_heads=None, tie_word_embeddings="absent", head_dim=32))
    assert (plain.kv_heads, plain.head_dim, plain.tied) == (9, 32, False)
    two = from_config(written(tmp_path, model_type="qwen2", sliding_window=4096, use_sliding_window=False))
    assert (two.qkv_bias, two.out_bias, two.qk_norm) == (True, False, False)
    assert two.parameters() == SMOLLM2_135M.parameters() + 30 * (576 + 2 * 192)
    three = from_config(written(tmp_path, model_type="qwen3"))
    assert three.qk_norm and three.parameters() == SMOLLM2_135M.parameters() + 30 * 2 * 64
    biased = from_config(written(tmp_path, attention_bias=True))
    assert biased.parameters() == SMOLLM2_135M.parameters() + 30 * (576 + 2 * 192 + 576)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": "absent"}, "has no hidden_size"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 4}, "heads is 9 and kv_heads 4"),
        ({"model_type": "absent"}, "has no model_type"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2'.*allowed: llama"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "kv_lora_rank: latent attention"),
        ({"model_type": "mixtral", "num_local_experts": 8}, "num_local_experts: a mixture of experts"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window is 4096"),
        ({"mlp_bias": True}, "mlp_bias is True"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(tmp_path, changes, text):
    with pytest.raises(ValueError, match=text):
        from_config(written(tmp_path, **changes))


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(ValueError, match="no file .*config.json"):
        from_config(tmp_path)
    for text, why in (("{nonsense", "not JSON"), ("[1]", "JSON list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=why):
            from_config(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not JSON"):
        from_config(tmp_path)


def test_presets_by_name():
    assert [model(preset.name.upper()) for preset in MODELS] == list(MODELS)
    with pytest.raises(ValueError, match="model is 'gpt'; allowed: SmolLM2-135M, Llama-3.1-8B"):
        model("gpt")
    with pytest.raises(ValueError, match="no file nowhere/config.json"):
        model("nowhere/config.json")
