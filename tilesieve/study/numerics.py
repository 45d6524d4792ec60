"""Numerics of the softmax over a selection: which maximum is subtracted, and the mass of what was not selected."""

from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward
from tilesieve.hf.session import Seen, Session
from tilesieve.policies import Policy
from tilesieve.study.bench import Bench, Trial
from tilesieve.study.measure import mask_of
from tilesieve.study.plan import Plan
from tilesieve.study.store import Store

TOKENS, TRIAL_TOKENS = 256, 1024
# Layers looked at: about this many, spread evenly.
LAYERS = 3
# Half a unit in the last place of fp32, relative.
UNIT = 2.0**-24
# exp of torch: within this many units (measured against fp64 over -87..0: tests/study/test_numerics.py).
EXP_UNITS = 4


def numerics(bench: Bench, store: Store) -> dict[str, Any]:
    """Section "numerics". Gaps are in nats: the largest of all scores minus the largest selected one."""
    plan = bench.plan
    tokens = min(plan.tokens, TOKENS)
    policies = compared(plan, plan.scaled(tokens), bench)
    policy = policies["low-rank"]
    settings = {"tokens": tokens, "policy": repr(policy)}
    found = store.part("numerics", "global max", settings, partial(global_max, bench, tokens, policy))
    section = {"tokens": tokens, "k": policy.k, "global_max": found | breaking(), "unselected": []}
    if plan.full:
        tokens = min(plan.tokens, TRIAL_TOKENS)
        for name, policy in compared(plan, plan.scaled(tokens), bench).items():
            make = partial(unselected, bench, tokens, name, policy)
            label = f"top-{policy.k} {name}, unselected mass estimated"
            row = store.part("numerics", label, {"tokens": tokens, "policy": repr(policy)}, make)
            section["unselected"].append({"name": name, "label": label, "tokens": tokens, "k": policy.k, **row})
    return section


def compared(plan: Plan, k: int, bench: Bench) -> dict[str, Policy]:
    """Exact selection by layer, and by the plan's reduced scores."""
    first, last = plan.ends(k)
    exact = Policy(k=k, first=first, last=last)
    return {"exact": exact, "low-rank": replace(exact, scoring=plan.reduced(bench.shape))}


def unselected(bench: Bench, tokens: int, name: str, policy: Policy) -> dict[str, float]:
    """The policy with the mass of what it left out estimated in the denominator, and with it ignored."""

    def run(how: str) -> Trial:
        return bench.trial(replace(policy, unselected=how), tokens, f"{name}, unselected {how}")

    ignored, estimated = run("ignored").numbers(), run("estimated").numbers()
    return {
        **{key: estimated[key] for key in ("perplexity", "delta", "kl_mean", "kl_worst")},
        **{f"{key}_ignored": ignored[key] for key in ("perplexity", "delta", "kl_mean", "kl_worst")},
    }  # fmt: skip


@dataclass
class Compared:
    """largest_difference: of any output number, between subtracting the maximum of all scores and of the selected
    ones; rounding: what `bound` allows at that number; worst_share: largest difference over its own bound;
    largest_gap: nats between the two maxima; rows: (layer, head, row) compared."""

    largest_difference: float = 0.0
    rounding: float = 0.0
    worst_share: float = 0.0
    largest_gap: float = 0.0
    rows: int = 0

    def add(self, scores: Tensor, mask: Tensor, value: Tensor) -> None:
        """scores [H,R,L], -inf where a row does not see; mask [H,R,L] selected; value [H,L,Dv]; all fp32."""
        top = scores.amax(-1, keepdim=True)
        selected = scores.masked_fill(~mask, -torch.inf)
        own = selected.amax(-1, keepdim=True)
        difference = (softmax_over(selected, own, value) - softmax_over(selected, top, value)).abs()
        allowed = bound(selected, own, value) + bound(selected, top, value)
        worst = int(difference.argmax())
        if float(difference.max()) >= self.largest_difference:
            self.largest_difference = float(difference.max())
            self.rounding = float(allowed.flatten()[worst])
        self.worst_share = max(self.worst_share, float((difference / allowed).nan_to_num(0.0).max()))
        self.largest_gap = max(self.largest_gap, float((top - own).max()))
        self.rows += scores.shape[0] * scores.shape[1]


def softmax_over(scores: Tensor, shift: Tensor, value: Tensor) -> Tensor:
    """Attention output [H,R,Dv] of fp32 scores [H,R,L], -inf where not selected, with `shift` [H,R,1] subtracted.

    Shifting changes nothing in exact arithmetic. It is all zeros over zeros where every weight underflows.
    """
    weight = torch.exp(scores - shift)
    return torch.matmul(weight, value) / weight.sum(-1, keepdim=True)


def bound(scores: Tensor, shift: Tensor, value: Tensor) -> Tensor:
    """What rounding may do to softmax_over, [H,R,Dv], to first order; valid while no weight underflows.

    Subtracting rounds an exponent s - m by at most |s - m| units, which is the relative error of that weight; exp
    adds EXP_UNITS; a sum of n products adds n, a sum of n numbers n - 1, the quotient 1. An error e_i of weight i
    moves the output by w_i e_i (v_i - out), so by at most the w-mean of e_i times twice the largest |v| selected.
    """
    selected = scores > -torch.inf
    picks = selected.sum(-1, keepdim=True)
    away = torch.where(selected, (scores - shift).abs(), 0.0)
    weight = torch.softmax(scores, -1)
    units = 2 * ((weight * away).sum(-1, keepdim=True) + EXP_UNITS) + 2 * picks
    # Largest |v| that the row selects, by column.
    largest = torch.stack([(value[h].abs() * selected[h][..., None]).amax(1) for h in range(len(value))])
    return UNIT * units * largest


def global_max(bench: Bench, tokens: int, policy: Policy) -> dict[str, Any]:
    """Real queries and keys: the first layer that selects and some after it, every head and row."""
    compared, layers = Compared(), []
    stride, selecting = max(1, bench.shape.layers // LAYERS), count()

    def look(seen: Seen) -> None:
        bench.tell("softmax with the maximum of all scores", (seen.layer + 1) / bench.shape.layers)
        if seen.selections and next(selecting) % stride == 0:
            layers.append(seen.layer)
            compare(compared, seen)

    session = Session.new(bench.shape, policy, tokens=tokens)
    session.watch = look
    forward(bench.model, bench.ids[:tokens], session, "rows")
    return {**asdict(compared), "layers": layers}


def compare(compared: Compared, seen: Seen) -> None:
    """Every row of one layer, by chunks as they were selected."""
    heads, groups = seen.q.shape[1], seen.key.shape[0]
    key, value = (t.float().repeat_interleave(heads // groups, 0) for t in (seen.key, seen.value))
    end = seen.start + seen.q.shape[0]
    low = end - sum(len(s.index) for s in seen.selections)
    for selection in seen.selections:
        high = low + len(selection.index)
        q = seen.q[low - seen.start : high - seen.start].float().transpose(0, 1)
        scores = torch.matmul(q, key[:, :high].transpose(1, 2)) * seen.scale
        row = torch.arange(low, high)[:, None]
        scores = scores.masked_fill(torch.arange(high) > row, -torch.inf)
        compared.add(scores, mask_of((selection,), heads, high), value[:, :high])
        low = high


# Gaps tried: every half nat up to this many.
LAST_GAP = 120
PICKS = 16


def breaking() -> dict[str, float | None]:
    """Selected scores that all lie `gap` below the maximum of all: where subtracting that one goes wrong in fp32.

    breaks_at: the first gap at which the output is further off than `bound` allows; nothing_at: the first at which no
    weight is left and it is 0 / 0. null: at no gap tried. Both are of this machine, and later where it has
    subnormal numbers than where it flushes them to zero.
    """
    spread = torch.linspace(-2.0, 0.0, PICKS)
    value = torch.linspace(-1.0, 1.0, PICKS)[None, :, None]
    breaks = nothing = None
    for gap in (n / 2 for n in range(2 * LAST_GAP + 1)):
        scores = spread[None, None]
        shift = torch.full((1, 1, 1), gap)
        own = softmax_over(scores, scores.amax(-1, keepdim=True), value)
        off = float((softmax_over(scores, shift, value) - own).abs())
        allowed = float(bound(scores, shift, value) + bound(scores, scores.amax(-1, keepdim=True), value))
        if breaks is None and not off <= allowed:
            breaks = gap
        if nothing is None and off != off:
            nothing = gap
    return {"breaks_at": breaks, "nothing_at": nothing}
