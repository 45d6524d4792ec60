"""Tiny random decoders of several families, made on the spot."""

from typing import Any

import torch

COMMON = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 97, "max_position_embeddings": 512}


def tiny(family: str, seed: int = 0, **more: Any) -> Any:
    import transformers as tf

    gqa = {**COMMON, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    made = {
        "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**gqa, **more)),
        "llama_mha": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**{**gqa, "num_key_value_heads": 4}, **more)),
        "llama_mqa": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**{**gqa, "num_key_value_heads": 1}, **more)),
        "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**gqa, head_dim=24, **more)),
        "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**gqa, **{"sliding_window": 16, **more})),
        "gemma3": lambda: tf.Gemma3ForCausalLM(
            tf.Gemma3TextConfig(**{**gqa, "head_dim": 16, "sliding_window": 16, "sliding_window_pattern": 3, **more})
        ),
        "gpt2": lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(n_embd=64, n_layer=3, n_head=4, vocab_size=97, n_positions=512, **more)
        ),
        "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**gqa, pad_token_id=0, **more)),
    }
    torch.manual_seed(seed)
    model = made[family]().eval()
    # Default initialisation leaves attention nearly uniform, where no selection differs from another.
    with torch.no_grad():
        for name, p in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "c_attn", "qkv_proj")) and p.dim() == 2:
                p.mul_(12.0)
    return model


FAMILIES = ("llama", "llama_mha", "llama_mqa", "qwen3", "mistral", "gemma3", "gpt2", "phi3")
