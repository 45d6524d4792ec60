"""Where gate is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case

ROWS = "logits"


def _logits(generator: Generator, tokens: int, experts: int, values: str) -> Tensor:
    """normal; few: a handful of values, so that ties are everywhere; equal: all ties; wild: NaN,
    infinities and magnitudes past every exponential; nothing: NaN and -inf only."""
    logits = torch.randn(tokens, experts, generator=generator)
    if values == "few":
        return logits.round()
    if values == "equal":
        return torch.full_like(logits, 0.25)
    odd = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e4, -1e4, -100.0, 88.0, 3e38, -3e38])
    if values == "wild":
        pick = torch.randint(0, 2 * len(odd), logits.shape, generator=generator)
        return torch.where(pick < len(odd), odd[pick % len(odd)], logits * 30)
    if values == "nothing":
        return torch.where(logits > 0, torch.nan, -torch.inf)
    return logits


def _inputs(generator: Generator, *, tokens: int, experts: int, values: str = "normal",
            of: torch.dtype = torch.float32, bias: str = "", masked: bool = False, hashed: int | None = None,
            ids: torch.dtype = torch.int32, wrong: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    """bias: "", "normal" or "wild"; hashed: that many given ids per token; wrong: some of them out of range
    or repeated."""
    logits = _logits(generator, tokens, experts, values).to(of)
    inputs: dict[str, Any] = {"logits": logits, **more}
    if bias:
        inputs["bias"] = torch.randn(experts, generator=generator) * 0.2
    if bias == "wild":
        inputs["bias"][::5], inputs["bias"][1::5], inputs["bias"][2] = torch.inf, -torch.inf, torch.nan
    if masked:
        inputs["mask"] = torch.rand(tokens, generator=generator) < 0.6
        logits[~inputs["mask"]] = torch.nan  # padding must not be read
    if hashed is not None:
        given = torch.rand(tokens, experts, generator=generator).argsort(1)[:, :hashed]
        if wrong:
            given = torch.randint(-2, experts + 2, given.shape, generator=generator)
        inputs["ids"] = given.to(ids)
    return inputs


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


def _v32(name: str, **shape: Any) -> Case:
    return _case(name, experts=256, groups=8, top_groups=4, k=8, scale=2.5, **shape)


# No error: scores are rounded from fp64, so the forms give the same bits.
CASES = (
    _case("small", tokens=5, experts=8, k=2),
    _v32("v32", tokens=17, bias="normal"),
    _v32("v32_bf16_masked", tokens=17, of=torch.bfloat16, masked=True, bias="normal"),
    _v32("v32_ties", tokens=9, values="equal"),
    _case("v2_softmax_max", tokens=9, experts=40, k=6, groups=8, top_groups=3, score="softmax", renormalise=False),
    _case("v4_sqrt_softplus", tokens=9, experts=64, k=6, score="sqrt_softplus", bias="normal", scale=1.5),
    _case("hashed", tokens=9, experts=32, hashed=6, score="sqrt_softplus", scale=1.5),
    _case("hashed_softmax", tokens=9, experts=12, hashed=3, score="softmax", ids=torch.int64, masked=True),
    _case("hashed_wrong", invalid=True, tokens=30, experts=6, hashed=4, wrong=True, values="wild"),
    _case("few_values", tokens=33, experts=24, k=5, values="few", groups=6, top_groups=2, group_score="top2"),
    _case("wild_sigmoid", tokens=33, experts=24, k=6, values="wild", groups=6, top_groups=2, group_score="top2"),
    _case("wild_softmax", tokens=33, experts=10, k=7, values="wild", score="softmax", epsilon="clamp"),
    _case("wild_sqrt_softplus", tokens=33, experts=12, k=4, values="wild", score="sqrt_softplus", groups=3,
          top_groups=2, epsilon="none"),
    _case("wild_bias", invalid=True, tokens=33, experts=24, k=6, values="wild", bias="wild", groups=6, top_groups=3),
    _case("nothing_to_pick", tokens=6, experts=9, k=4, values="nothing", score="softmax", epsilon="none"),
    _case("one_expert_a_group", tokens=7, experts=8, k=3, groups=8, top_groups=4, bias="normal", of=torch.float16),
    _case("all_experts", tokens=4, experts=6, k=6, score="softmax"),
    _case("one_token", tokens=1, experts=512, k=10, score="softmax"),
    _case("one_expert", tokens=3, experts=1, k=1, bias="normal"),
    _case("more_than_a_pass", tokens=70, experts=4000, k=3, score="softmax"),
    _case("empty", tokens=0, experts=8, k=2, bias="normal", groups=4, top_groups=2),
    _case("no_picks", tokens=3, experts=8, k=0),
    _case("no_experts", tokens=3, experts=0, k=0),
    _case("hashed_none", tokens=3, experts=0, hashed=0),
)  # fmt: skip


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but token `row`."""
    mine = {n: inputs[n][row : row + 1] for n in ("logits", "mask", "ids") if n in inputs}
    return inputs | mine


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    logits, ids, mask = inputs["logits"], inputs.get("ids"), inputs.get("mask")
    tokens, experts = logits.shape
    live = [t for t in range(tokens) if mask is None or mask[t]]
    seen: set[tuple[int, int]] = set()
    for t in live:
        if ids is not None and inputs.get("score") != "softmax":
            seen |= {(t, e) for e in ids[t].tolist() if 0 <= e < experts}
        elif inputs.get("k", 1):
            seen |= {(t, e) for e in range(experts)}
    read = len(seen) * logits.element_size() + (0 if mask is None else tokens)
    read += 0 if ids is None else len(live) * ids.shape[1] * ids.element_size()
    read += 4 * experts if "bias" in inputs and live else 0
    return read + sum(t.numel() * t.element_size() for t in outputs)
