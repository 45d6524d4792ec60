"""Which configurations are taken, and what is said of the others. (Bad files: tests/study/test_refusals.py.)"""

import pytest
import transformers as tf

from tilesieve.hf.load import Checkpoint
from tilesieve.hf.shape import Shape, shape_of


def test_shapes():
    gqa = tf.LlamaConfig(num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, hidden_size=64,
                         max_position_embeddings=99)  # fmt: skip
    assert shape_of(gqa) == Shape("llama", 3, 8, 2, 8, 99, rotary=8)
    assert shape_of(tf.Qwen3Config(head_dim=24)).head_dim == 24
    assert shape_of(tf.CohereConfig()).rotary == 0  # it turns neighbours, not halves
    partial = tf.GPTNeoXConfig(hidden_size=64, num_attention_heads=4)
    assert shape_of(partial).rotary == 4  # a quarter of 16
    assert shape_of(tf.GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=50)) == Shape(
        "gpt2", 3, 4, 4, 16, 50, rotary=0
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (tf.BertConfig(), "bert has no decoder"),
        (tf.T5Config(), "t5 is an encoder-decoder"),
        (tf.ViTConfig(), "vit has no decoder"),
        (tf.DeepseekV3Config(), r"deepseek_v3 caches latents \(MLA\)"),
        (tf.Gemma2Config(), "gemma2 sets attn_logit_softcapping"),
        (tf.MambaConfig(), "mamba"),
    ],
)
def test_refused_configurations(config, said):
    with pytest.raises(ValueError, match=said):
        shape_of(config)


def test_what_was_saved_is_what_is_loaded(model_folder):
    checkpoint = Checkpoint.open(model_folder)
    model, tokenizer = checkpoint.model(), checkpoint.tokenizer
    assert checkpoint.shape == Shape("llama", 3, 4, 2, 16, 512, rotary=16)
    assert tokenizer("the king")["input_ids"] == [1, 2]
    assert not model.training


def test_missing_tensors_are_named(model_folder, tmp_path):
    """transformers fills a missing tensor with random numbers and says so in a log; here it is an error."""
    import shutil

    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(model_folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lack model\.layers\.1\.self_attn\.q_proj\.weight"):
        Checkpoint.open(folder).model()
