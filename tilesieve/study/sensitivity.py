"""What sparsity costs, head by head, when only that head is sparse: all of them from one pass with gradients.

Beside the dense output of every head stands the output it would have if it selected; the difference is the head's
change. The loss then moves by the gradient at the dense output times the change (first order), and by half its
curvature along the change. The curvature of a log-likelihood is the spread of its gradient when labels are drawn from
the model itself; one draw prices all heads, row by row: rows are taken to act on different tokens. So one forward
and two backward passes price every head of every layer, and real runs with one layer or one head sparse say how good
that is (notes/2026-11-30-prices-of-heads.md).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward
from tilesieve.hf.session import Session
from tilesieve.layers.dense import dense_rows
from tilesieve.ledger.ledger import Ledger
from tilesieve.policies import Policy
from tilesieve.study.bench import Bench
from tilesieve.study.ladder import STEPS
from tilesieve.study.measure import loss
from tilesieve.study.store import Store

# Text of the pass, how many of the worst are listed, how many are measured, how many layers are exempted.
TOKENS, LISTED, CHECKED, EXEMPT = 1024, 20, 3, (1, 2, 4, 8)


def sensitivity(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "sensitivity" of the exact shared policy at the section's k."""
    plan = bench.plan
    tokens = min(plan.tokens, TOKENS)
    policy = Policy(k=plan.scaled(tokens))
    settings = {"tokens": tokens, "policy": repr(policy)}
    layers = store.part("sensitivity", "pass", settings, partial(priced, bench, policy, tokens))
    ranked = sorted(
        ({"layer": row["layer"], "head": h, "cost": cost} for row in layers for h, cost in enumerate(row["heads"])),
        key=lambda row: -row["cost"],
    )  # fmt: skip
    by_layer = sorted(layers, key=lambda row: -row["cost"])
    # The worst, and the middle: an estimate that is right only where it is large would rank well and mean little.
    asked = [(row["layer"], -1, row["cost"]) for row in (*by_layer[:CHECKED], by_layer[len(by_layer) // 2])]
    asked += [(row["layer"], row["head"], row["cost"]) for row in ranked[:CHECKED]]
    checked = [
        {"layer": layer, "head": head, "estimated": cost,
         "measured": store.part("sensitivity", f"only {layer} {head}", settings,
                                partial(measured, bench, policy, tokens, layer, head))}
        for layer, head, cost in dict.fromkeys(asked)
    ]  # fmt: skip
    by_k = [{"k": k, "layers": store.part("sensitivity", f"pass at k {k}", settings,
                                          partial(priced, bench, Policy(k=k), tokens))}
            for k in sorted({max(1, policy.k // 2), 2 * policy.k, 4 * policy.k}) if k < tokens]  # fmt: skip
    by_k = sorted([*by_k, {"k": policy.k, "layers": layers}], key=lambda row: row["k"])
    exempt = []
    for count in (0, *(n for n in EXEMPT if n < len(by_layer))):
        spared = sorted(row["layer"] for row in by_layer[:count])
        exempted = Policy(k=policy.k, dense_layers=frozenset(spared))
        row = store.part("sensitivity", f"exempt {spared}", settings, partial(bought, bench, exempted, tokens))
        label = f"dense: {', '.join(map(str, spared))}" if spared else "nothing exempt"
        exempt.append({"layers": spared, "label": label, **row})
    return {
        "k": policy.k, "tokens": tokens, "scored": [tokens // 2, tokens], "policy": f"exact top-{policy.k} per layer",
        "layers": layers, "ranked": ranked[:LISTED], "checked": checked, "exempt": exempt,
        "by_k": [{"k": row["k"], "layers": [{"layer": n["layer"], "cost": n["cost"]} for n in row["layers"]]}
                 for row in by_k],
    }  # fmt: skip


@dataclass
class Priced:
    """Stands in for a Session during one dense pass whose graph is kept: every selecting layer is priced.

    beside: a session under the policy; it is given the dense queries, keys and values, and nobody reads its output.
    moved: by layer, the last backward pass's gradient times change, fp64 [R,H].
    """

    beside: Session
    tell: Any
    moved: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        with torch.no_grad():
            other = self.beside.attend(layer, q.detach(), k.detach(), v.detach(), scale, window)
        rows = torch.arange(q.shape[0])
        mask = None
        if window is not None:
            mask = (rows <= rows[:, None]) & (rows > rows[:, None] - window)
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask,
            is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
        )[0].transpose(0, 1)  # fmt: skip
        if window is None:
            change = other - out.detach()
            out.register_hook(lambda gradient: self.price(layer, gradient, change))
        self.tell("sensitivity: forward", (layer + 1) / self.beside.shape.layers)
        return out

    def price(self, layer: int, gradient: Tensor, change: Tensor) -> None:
        self.moved[layer] = (gradient * change).sum(2).double()
        self.tell("sensitivity: backward", 1 - layer / self.beside.shape.layers)


def priced(bench: Bench, policy: Policy, tokens: int) -> list[dict[str, Any]]:
    """Per layer: nats per scored token that it costs when only it is sparse, and that each of its heads does."""
    ids, start, model = bench.ids[:tokens], tokens // 2, bench.model
    beside = Session.new(bench.shape, policy, tokens=tokens, prompt=start)
    beside.begin(tokens, "rows")
    probe = Priced(beside, bench.tell)
    for parameter in model.parameters():  # only outputs of heads are asked about
        parameter.requires_grad_(False)
    embedded = model.get_input_embeddings()(ids[None]).detach().requires_grad_(True)
    with torch.enable_grad():
        logits = model(inputs_embeds=embedded, position_ids=torch.arange(tokens)[None], use_cache=False,
                       logits_to_keep=tokens - start + 1, sieve=probe).logits[0, :-1].float()  # fmt: skip
        torch.nn.functional.cross_entropy(logits, ids[start:]).backward(retain_graph=True)
        first = dict(probe.moved)
        # Summed over tokens: labels drawn apart from each other make the products between them vanish.
        torch.nn.functional.cross_entropy(logits, drawn(logits.detach()), reduction="sum").backward()
    found = []
    for layer, slope in sorted(first.items()):
        bent = probe.moved[layer]
        heads = slope.sum(0) + bent.square().sum(0) / 2 / (tokens - start)
        whole = slope.sum() + bent.sum(1).square().sum() / 2 / (tokens - start)
        found.append({"layer": layer, "cost": float(whole), "heads": heads.tolist()})
    return found


def drawn(logits: Tensor) -> Tensor:
    """A label per row from the model's own distribution, the same at every run. [T,V] -> int64 [T]."""
    noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
    return (logits - (-noise.clamp_min(1e-20).log()).log()).argmax(-1)


@dataclass
class Only(Session):
    """A session in which one layer, or one head of it, selects and everything else is dense."""

    layer: int = 0
    head: int = -1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        policy, self.policy = self.policy, self.policy if layer == self.layer else None
        out = super().attend(layer, q, k, v, scale, window)
        self.policy = policy
        if layer == self.layer and self.head >= 0:
            assert self.pool is not None and self.pages is not None
            dense = dense_rows(q, self.pool.layers[layer].kv, self.pages, self.seq, self.start, scale=scale)
            dense[:, self.head] = out[:, self.head]
            out = dense
        return out


def measured(bench: Bench, policy: Policy, tokens: int, layer: int, head: int) -> float:
    """Nats per scored token that the layer, or the head of it, does cost when only it selects."""
    dense = bench.dense(tokens)
    session = Only.new(bench.shape, policy, tokens=tokens, prompt=dense.scored_from)
    assert isinstance(session, Only)
    session.layer, session.head = layer, head
    bench.watched(session, Ledger(), f"only layer {layer}" + (f", head {head}" if head >= 0 else ""))
    logits = forward(bench.model, bench.ids[:tokens], session, "rows", keep=len(dense.targets) + 1)[:-1]
    return loss(logits, dense.targets) - dense.nll


def bought(bench: Bench, policy: Policy, tokens: int) -> dict[str, Any]:
    """What a policy with exempted layers loses and reads."""
    trial = bench.trial(policy, tokens, f"exempt {sorted(policy.dense_layers) or 'nothing'}")
    numbers = trial.numbers()
    return {
        "perplexity": numbers["perplexity"], "delta": numbers["delta"],
        "bytes_per_token": bench.decode_bytes(policy, tokens, min(STEPS, bench.plan.steps)),
    }  # fmt: skip
