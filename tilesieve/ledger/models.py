"""Shapes of ordinary transformers with grouped-query attention, and how to read one from a config.json."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Model:
    """A llama-like model: per layer two RMSNorms, GQA with rope, and a gated MLP.

    tied: the head is the embedding. qkv_bias, out_bias: biases of the attention projections. qk_norm: an RMSNorm of
    each query and key head before the rotation.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in (int, "int") and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} is {value!r}; allowed: an integer >= 1")
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads is {self.heads} and kv_heads {self.kv_heads}; heads must be a multiple of kv_heads"
            )

    @property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of the keys, or of the values, of one token and layer."""
        return self.kv_heads * self.head_dim

    def parameters(self) -> int:
        """Weights, each counted once."""
        projections = self.hidden * (2 * self.q_width + 2 * self.kv_width + 3 * self.intermediate)
        biases = self.qkv_bias * (self.q_width + 2 * self.kv_width) + self.out_bias * self.hidden
        norms = 2 * self.hidden + self.qk_norm * 2 * self.head_dim
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (projections + biases + norms) + self.hidden + embeddings

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token adds to the caches of all layers."""
        return self.layers * 2 * self.kv_width * itemsize


SMOLLM2_135M = Model("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, tied=True)
LLAMA31_8B = Model("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256, tied=False)
MODELS = (SMOLLM2_135M, LLAMA31_8B)

# model_type of the configs that this ledger has the right rows for.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_MLA = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def model(name: str) -> Model:
    """A preset by name, upper or lower case, or what the config.json at that path says."""
    for known in MODELS:
        if known.name.lower() == name.lower():
            return known
    if name.endswith(".json") or Path(name).is_dir():
        return from_config(name)
    raise ValueError(f"model is {name!r}; allowed: {', '.join(m.name for m in MODELS)}, or the path of a config.json")


def from_config(path: str | Path) -> Model:
    """The shape that a transformers config.json (or the folder that holds one) states.

    Raises ValueError when there is no such file, it is not JSON, a field is missing (named) or no number, and for
    models this ledger has no rows for: latent attention, experts, sliding windows, other families.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config: there is no file {path}") from None
    except ValueError as error:  # JSON and UTF-8 errors are both ValueErrors
        raise ValueError(f"config: {path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"config: {path} holds a JSON {type(config).__name__}; an object is needed")
    _refuse(config, path)

    def number(field: str, default: int | None = None) -> int:
        value = config.get(field)
        value = default if value is None else value
        if value is None:
            raise ValueError(f"config: {path} has no {field}")
        if type(value) is not int or value < 1:
            raise ValueError(f"config: {field} is {value!r} in {path}; allowed: an integer >= 1")
        return value

    family = config["model_type"]
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    bias = bool(config.get("attention_bias"))
    return Model(
        name=path.resolve().parent.name or family,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", hidden // heads),
        intermediate=number("intermediate_size"),
        vocab=number("vocab_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        qk_norm=family == "qwen3",
    )


def _refuse(config: dict[str, Any], path: Path) -> None:
    latent = [field for field in _MLA if config.get(field)]
    if latent:
        raise ValueError(f"config: {path} has {latent[0]}: latent attention (MLA) keeps no keys and values per head, "
                         "and this step has no rows for it")  # fmt: skip
    experts = [field for field in _EXPERTS if config.get(field)]
    if experts:
        raise ValueError(f"config: {path} has {experts[0]}: a mixture of experts reads only the experts that its "
                         "tokens hit, and this step has no rows for it")  # fmt: skip
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise ValueError(f"config: sliding_window is {config['sliding_window']} in {path}: a windowed model does not "
                         "read its whole context; allowed: null")  # fmt: skip
    if config.get("mlp_bias"):
        raise ValueError(f"config: mlp_bias is {config['mlp_bias']!r} in {path}; allowed: false")
    if "model_type" not in config:
        raise ValueError(f"config: {path} has no model_type")
    if config["model_type"] not in FAMILIES:
        raise ValueError(f"config: model_type is {config['model_type']!r} in {path}; allowed: {', '.join(FAMILIES)}")
