"""What of a transformers configuration the attention of a decoder needs to know."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """layers, query heads H, kv heads G, key width D, context limit (None = none stated).

    rotary: leading dimensions of a key that a half-split rope turns; 0 without a rope, or with another kind.
    """

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int | None
    rotary: int = 0


# Families whose rope turns neighbours (2i, 2i + 1) instead of halves.
INTERLEAVED = ("glm", "chatglm", "cohere", "gptj", "codegen", "ernie4_5", "llama4", "helium")


def shape_of(config: Any) -> Shape:
    """Raises ValueError for what is no decoder, and for attention that is not plain MHA or GQA."""
    kind = getattr(config, "model_type", "unknown")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder-decoder; a decoder-only model is needed")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    encoders = ("bert", "roberta", "electra", "camembert", "xlm-roberta", "ernie", "megatron-bert", "data2vec-text")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind in encoders:
        raise ValueError(f"{kind} has no decoder; a decoder-only language model is needed")
    config = config.get_text_config(decoder=True)
    if getattr(config, "kv_lora_rank", None):
        raise ValueError(f"{kind} caches latents (MLA); plain multi-head or grouped-query attention is needed")
    unsupported = ("attn_logit_softcapping", "attention_chunk_size")
    for name in unsupported:
        if getattr(config, name, None):
            raise ValueError(f"{kind} sets {name} = {getattr(config, name)}, which these operators do not compute")
    try:
        layers, heads, hidden = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    except AttributeError as error:
        raise ValueError(f"{kind}: config.json lacks {error.name}") from error
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False):
        kv_heads = 1
    if heads % kv_heads:
        raise ValueError(f"{kind}: {heads} query heads are not a multiple of {kv_heads} kv heads")
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    context = getattr(config, "max_position_embeddings", None)
    return Shape(kind, layers, heads, kv_heads, head_dim, context, _rotary(config, kind, head_dim))


def _rotary(config: Any, kind: str, head_dim: int) -> int:
    """How many leading dimensions a half-split rope turns."""
    rope = getattr(config, "rope_parameters", None) or {}
    if not rope and not hasattr(config, "rope_theta"):
        return 0
    if any(kind.startswith(name) for name in INTERLEAVED):
        return 0
    part = rope.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return int(head_dim * part) // 2 * 2
