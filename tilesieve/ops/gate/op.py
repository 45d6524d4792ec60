"""gate: router logits to the experts of each token and their weights."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilesieve.ops import expect
from tilesieve.ops.gate.reference import EPSILONS, GROUP_SCORES, SCORES
from tilesieve.ops.run import Op, Spec, call, define
from tilesieve.types import Selection


class _Flat(NamedTuple):
    """The arguments of the torch op, in its schema's order."""

    logits: Tensor
    k: int
    score: str
    bias: Tensor | None
    groups: int
    top_groups: int
    group_score: str
    renormalise: bool
    epsilon: str
    scale: float
    mask: Tensor | None
    ids: Tensor | None


def _outputs(*args: Any) -> tuple[Spec, ...]:
    flat = _Flat(*args)
    tokens = flat.logits.shape[0]
    return ((tokens, flat.k), torch.int32), ((tokens,), torch.int32), ((tokens, flat.k), torch.float32)


def _sizes(*args: Any) -> dict[str, int]:
    flat = _Flat(*args)
    tokens, experts = flat.logits.shape
    mask = torch.ones(tokens, dtype=torch.bool, device=flat.logits.device) if flat.mask is None else flat.mask
    live = int(mask.sum())
    scored, picked = (live * experts if flat.k else 0), live * flat.k
    if flat.ids is not None:
        valid = (flat.ids >= 0) & (flat.ids < experts) & mask[:, None]
        picked = int(valid.sum())
        if flat.score != "softmax":
            row = torch.arange(tokens, device=valid.device)[:, None]
            scored = len((row * experts + flat.ids)[valid].unique())
    pairs = flat.groups > flat.top_groups and flat.group_score == "top2" and experts > flat.groups
    return {
        "tokens": tokens, "experts": experts, "picks": flat.k, "live": live, "scored": scored, "picked": picked,
        "softmax": int(flat.score == "softmax"), "sqrt_softplus": int(flat.score == "sqrt_softplus"),
        "bias": int(flat.bias is not None), "pair_groups": flat.groups if pairs else 0,
        "renormalise": int(flat.renormalise), "mask": int(flat.mask is not None),
        "ids_itemsize": 0 if flat.ids is None else flat.ids.element_size(), "itemsize": flat.logits.element_size(),
    }  # fmt: skip


def _check(*args: Any) -> None:
    flat = _Flat(*args)
    experts = flat.logits.shape[1]
    if flat.bias is not None and bool(flat.bias.isnan().any()):
        raise ValueError(f"bias is NaN for expert {int(flat.bias.isnan().nonzero()[0])}; allowed: numbers")
    if flat.ids is None:
        return
    ids = flat.ids if flat.mask is None else flat.ids[flat.mask]
    if bool(((ids < -1) | (ids >= experts)).any()):
        wrong = ids[(ids < -1) | (ids >= experts)]
        raise ValueError(f"ids holds {int(wrong[0])}; allowed: 0 to {experts - 1}, or -1 for no expert")
    ordered = ids.sort(dim=-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if bool(twice.any()):
        raise ValueError(f"ids names expert {int(ordered[:, 1:][twice][0])} twice for one token; allowed: once")


OP = define(
    Op(
        name="gate",
        schema="Tensor logits, int k, str score, Tensor? bias, int groups, int top_groups, str group_score, "
        "bool renormalise, str epsilon, float scale, Tensor? mask, Tensor? ids",
        outputs=_outputs,
        sizes=_sizes,
        implementations=("reference", "cpu"),
        returns=("index", "count", "weight"),
        check=_check,
    )
)


def _check_groups(experts: int, k: int, groups: int, top_groups: int) -> None:
    expect.at_least("groups", groups, 1)
    if groups > max(1, experts) or experts % groups:
        raise ValueError(f"groups is {groups} for {experts} experts; allowed: a divisor, each group with an expert")
    expect.at_least("top_groups", top_groups, 1)
    if top_groups > groups:
        raise ValueError(f"top_groups is {top_groups}; allowed: 1 to groups = {groups}")
    hold = top_groups * (experts // groups)
    if k > hold:
        raise ValueError(f"k is {k}; allowed: at most {hold}, what {top_groups} of {groups} groups of "
                         f"{experts // groups} experts hold")  # fmt: skip


def gate(logits: Tensor, *, k: int | None = None, score: str = "sigmoid", bias: Tensor | None = None,
         groups: int = 1, top_groups: int | None = None, group_score: str | None = None, renormalise: bool = True,
         epsilon: str = "add", scale: float = 1.0, mask: Tensor | None = None, ids: Tensor | None = None,
         out: Selection | None = None, impl: str | None = None) -> Selection:  # fmt: skip
    """The k best experts of each token, and what each weighs.

    logits  fp32, bf16 or fp16 [T,E], the router's product x @ w.T (a linear of its own)
    k       experts per token; with ids their width, and may be left out
    score   "sigmoid", "softmax" (over all experts) or "sqrt_softplus" = sqrt(log(1 + exp(x)))
    bias    fp32 [E] or None: added to the scores for ranking only; no weight sees it
    groups, top_groups  experts stand in `groups` runs of E / groups; only those of the top_groups best groups
            (all by default) can be picked
    group_score  "top2": the sum of a group's two best selection scores, of a group with one expert that one;
            "max": its best. By default "top2" with a bias and "max" without
    renormalise  divide a token's weights by their sum, where epsilon says: "add" sum + 1e-20; "clamp"
            max(sum, 1e-20); "none" the sum itself, and 0 / 0 is NaN
    scale   multiplies every weight, once, renormalised or not
    mask    bool [T] or None: False is a token that takes no part. Its logits are not read, it gets ids -1,
            weights 0 and count 0
    ids     int32 or int64 [T,K] or None: experts already chosen (by a hash of the token); they are
            weighed in the order given, nothing is ranked, and bias and groups are refused. Ids outside
            [0, E) are dropped, -1 follows at the tail; an id given twice weighs twice (`checked()` raises)

    Returns Selection(index int32 [T,K], count int32 [T], weight fp32 [T,K], space "expert"), the best expert
    first. What ranks is the selection score: the score in fp32 (exact, rounded once), plus the bias in
    fp32; of equal ones the lowest id, of equal groups the lowest. Weights are of the exact scores, without
    bias, summed in the order of the picks and rounded to fp32 once. A NaN logit ranks after all others, in
    id order, and weighs 0; for a softmax it is not there. Infinities follow the formula (softmax: its limit,
    +inf share 1 equally, a row of -inf has all scores 0); a NaN bias ranks last, a NaN group score too.

    Raises ValueError naming the argument: a wrong shape, dtype, choice or device, groups that do not divide
    E, k larger than the kept groups hold.
    """
    dims: dict[str, int] = {}
    expect.shape(dims, "logits", logits, "T E", expect.FLOATS)
    for name, value, allowed in (("score", score, SCORES), ("epsilon", epsilon, EPSILONS),
                                 ("renormalise", renormalise, (True, False)),
                                 ("group_score", group_score, (None, *GROUP_SCORES))):  # fmt: skip
        expect.one_of(name, value, allowed)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise ValueError(f"scale is {scale!r}; allowed: a finite number")
    if bias is not None:
        expect.shape(dims, "bias", bias, "E", expect.FP32)
    if mask is not None:
        expect.shape(dims, "mask", mask, "T", (torch.bool,))
    if ids is not None:
        if k is not None:
            dims["K"] = k
        expect.shape(dims, "ids", ids, "T K", expect.INTS)
        k = ids.shape[1]
        given = {"bias": bias, "groups": None if groups == 1 else groups, "top_groups": top_groups,
                 "group_score": group_score}  # fmt: skip
        for name, argument in given.items():
            if argument is not None:
                raise ValueError(f"{name} is given with ids; allowed: one of them, ids are not ranked")
        top_groups = 1
    elif k is None:
        raise ValueError("k is None; allowed without ids: an integer >= 0")
    else:
        expect.at_least("k", k, 0)
        top_groups = groups if top_groups is None else top_groups
        _check_groups(dims["E"], k, groups, top_groups)
    expect.same_device("logits", logits, bias=bias, mask=mask, ids=ids)
    if group_score is None:
        group_score = "max" if bias is None else "top2"
    args = (logits, k, score, bias, groups, top_groups, group_score, renormalise, epsilon, float(scale), mask, ids)
    if out is None:
        index, count, weight = call(OP, *args, impl=impl)
        return Selection(index, count, weight, "expert")
    if out.weight is None or out.space != "expert":
        raise ValueError(f"out is a Selection of {out.space!r} {'without' if out.weight is None else 'with'} weights; "
                         "allowed: of 'expert' with weights")  # fmt: skip
    call(OP, *args, out=(out.index, out.count, out.weight), impl=impl)
    return out
