"""The attention function that transformers calls, and one forward of a model under a session."""

from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.session import Session

NAME = "tilesieve"


def attention(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
              scaling: float | None = None, sieve: Session | None = None, sliding_window: int | None = None,
              softcap: float | None = None, s_aux: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:  # fmt: skip
    """query [1,H,T,D], key and value [1,G,T,D] after rope -> [1,T,H,Dv]. The session comes as `sieve`."""
    if sieve is None:
        raise ValueError(f"{type(module).__name__} was not handed its session: call it through "
                         "tilesieve.hf.attention.forward; a model that does not pass keyword arguments on to its "
                         "attention cannot be run this way")  # fmt: skip
    for name, given in (("softcap", softcap), ("s_aux", s_aux)):
        if given is not None:
            raise ValueError(f"{type(module).__name__} asks for {name}, which these operators do not compute")
    if query.shape[0] != 1:
        raise ValueError(f"ids has a batch of {query.shape[0]}; a session runs one sequence")
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return sieve.attend(module.layer_idx, q, k, v, scaling, sliding_window)[None], None


def install(model: Any) -> None:
    """Make the model's attention ours. It then runs only through `forward`, with a session."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)
    model.set_attn_implementation(NAME)


def forward(model: Any, ids: Tensor, session: Session, way: str, *, keep: int = 1) -> Tensor:
    """Run `ids` [T] after what the session holds; logits fp32 [keep,V] of the last `keep` tokens.

    way: "dense", "prefill", "rows" or "step", as the session says. Raises ValueError where the
    session has no room, or where the model does not pass its keyword arguments on.
    """
    if ids.dim() != 1 or ids.shape[0] < 1:
        raise ValueError(f"ids has shape {tuple(ids.shape)}; allowed: [T] with T >= 1")
    session.begin(ids.shape[0], way)
    before = session.length()
    position = torch.arange(before, before + ids.shape[0], device=ids.device)[None]
    with torch.no_grad():
        logits = model(
            input_ids=ids[None], position_ids=position, use_cache=False, logits_to_keep=keep, sieve=session
        ).logits
    if session.length() != before + ids.shape[0]:
        raise ValueError(f"{type(model).__name__} computes its attention itself, not through transformers' attention "
                         "interface: nothing of it can be selected")  # fmt: skip
    return logits[0].float()
