"""gate, one token at a time. T tokens, E experts, K picks, G groups of P = E / G experts.

Scores are computed in fp64. What ranks is the score rounded once to fp32, plus the bias in fp32: so
every implementation finds the same ties. What weighs is the fp64 score, rounded once at the end.
"""

import math

import torch
from torch import Tensor

SCORES = ("sigmoid", "softmax", "sqrt_softplus")
GROUP_SCORES = ("top2", "max")
EPSILONS = ("add", "clamp", "none")
EPSILON = 1e-20
_LARGEST = torch.finfo(torch.float64).max


def scores(logits_TE: Tensor, score: str) -> Tensor:
    """fp64 [T,E] of logits in any dtype. NaN stays NaN. Small scores keep their relative precision: no 1 - p."""
    x_TE = logits_TE.double()
    if score == "softmax":
        nan_TE = x_TE.isnan()
        # A NaN has no share; +inf becomes the largest number, the limit of the formula: equal shares of 1.
        x_TE = x_TE.masked_fill(nan_TE, -torch.inf).clamp(max=_LARGEST)
        if x_TE.shape[1] == 0:
            return x_TE
        # Clamped, so that a row of -inf gives zeros.
        e_TE = (x_TE - x_TE.amax(-1, keepdim=True).clamp(min=-_LARGEST)).exp()
        # cumsum adds in ascending id, one after the other; sum's order depends on the shape.
        total_T1 = e_TE.cumsum(-1)[:, -1:]
        return (e_TE / total_T1.masked_fill(total_T1 == 0, 1.0)).masked_fill(nan_TE, torch.nan)
    e_TE = (-x_TE.abs()).exp()
    if score == "sigmoid":
        return torch.where(x_TE < 0, e_TE, torch.ones_like(e_TE)) / (1 + e_TE)
    return (e_TE.log1p() + x_TE.clamp(min=0)).sqrt()


def ranked(selection: list[float]) -> list[int]:
    """Places by value descending, ties by place, NaN last. -0 equals +0."""
    nan = [math.isnan(value) for value in selection]
    return sorted(range(len(selection)), key=lambda e: (nan[e], 0.0 if nan[e] else -selection[e], e))


def kept(selection_E: Tensor, groups: int, top_groups: int, group_score: str) -> list[int]:
    """The experts of the best groups, ascending; of equal groups the first."""
    value = []
    for group_P in selection_E.view(groups, -1):
        best = group_P[~group_P.isnan()].sort(descending=True).values
        total = best[:1].sum() if group_score == "max" or len(best) < 2 else best[0] + best[1]
        value.append(float(total) if len(best) else math.nan)
    size = len(selection_E) // groups
    return sorted(g * size + p for g in ranked(value)[:top_groups] for p in range(size))


def gate(logits_TE: Tensor, k: int, score: str, bias_E: Tensor | None, groups: int, top_groups: int, group_score: str,
         renormalise: bool, epsilon: str, scale: float, mask_T: Tensor | None,
         ids_TK: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    tokens, experts = logits_TE.shape
    device = logits_TE.device
    index_TK = torch.full((tokens, k), -1, dtype=torch.int32, device=device)
    count_T = torch.zeros(tokens, dtype=torch.int32, device=device)
    weight_TK = torch.zeros(tokens, k, dtype=torch.float32, device=device)
    for t in range(tokens):
        if mask_T is not None and not bool(mask_T[t]):
            continue
        score_E = scores(logits_TE[t : t + 1], score)[0]
        if ids_TK is not None:
            picks = [i for i in ids_TK[t].tolist() if 0 <= i < experts]
        else:
            selection_E = score_E.float()
            if bias_E is not None:
                selection_E = selection_E + bias_E
            mine = list(range(experts))
            if groups > top_groups:
                mine = kept(selection_E, groups, top_groups, group_score)
            values = selection_E.tolist()
            picks = [mine[place] for place in ranked([values[e] for e in mine])[:k]]
        weight = [0.0 if math.isnan(s) else s for s in (float(score_E[e]) for e in picks)]
        total = 0.0
        for w in weight:
            total = total + w
        total = {"add": total + EPSILON, "clamp": max(total, EPSILON), "none": total}[epsilon]
        for c, (e, w) in enumerate(zip(picks, weight, strict=True)):
            index_TK[t, c] = e
            if not bool(score_E[e].isnan()):  # a NaN logit weighs 0 whatever the sum is
                if renormalise:
                    w = float(torch.tensor(w, dtype=torch.float64) / total)  # 0 / 0 is NaN, not an error
                weight_TK[t, c] = w * scale
        count_T[t] = len(picks)
    return index_TK, count_T, weight_TK
