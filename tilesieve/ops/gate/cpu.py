"""gate, many tokens at once: order-preserving integer keys, one topk on distinct keys. The reference's bits.

T tokens, E experts, K picks, G groups of P = E / G experts.
"""

import torch
from torch import Tensor

from tilesieve.ops.gate.reference import EPSILON, scores

# Bytes of scratch that one pass may use, and per logit. As in cost.py, which states what workspace that makes.
SCRATCH = 8 << 20
_LOGIT = 48
_LAST = -(1 << 31) + 1  # the key of NaN, below that of -inf
_NEVER = -(1 << 31)  # the key of an expert in a group that was not kept


def keys(x: Tensor) -> Tensor:
    """int32 keys of fp32 scores: a greater key is a better score, NaN is last, -0 equals +0."""
    bits = x.contiguous().view(torch.int32)
    sign = bits >> 31
    return ((bits & 0x7FFFFFFF) ^ sign).sub_(sign).masked_fill_(x.isnan(), _LAST)


def best(key: Tensor, k: int) -> Tensor:
    """Places of the k greatest keys along the last dimension, in order; of equal keys the first place."""
    width = key.shape[-1]
    # The place is part of the key, so no two are equal and topk has nothing to decide.
    place = torch.arange(width - 1, -1, -1, device=key.device)
    return width - 1 - ((key.long() << 32) | place).topk(k).values.bitwise_and_(0xFFFFFFFF)


def keep_(key_TE: Tensor, selection_TE: Tensor, groups: int, top_groups: int, group_score: str) -> None:
    """Set the keys of all experts outside the best groups to _NEVER."""
    per_TGP = selection_TE.unflatten(-1, (groups, -1))
    number_TGP = per_TGP.masked_fill(per_TGP.isnan(), -torch.inf)
    first_TG, place_TG = number_TGP.max(-1)
    if group_score == "top2" and number_TGP.shape[-1] > 1:
        number_TGP.scatter_(-1, place_TG[..., None], -torch.inf)
        # A group with a single number is worth that number.
        two_TG = (~per_TGP.isnan()).sum(-1) > 1
        value_TG = torch.where(two_TG, first_TG + number_TGP.amax(-1), first_TG)
    else:
        value_TG = first_TG
    value_TG = value_TG.masked_fill(per_TGP.isnan().all(-1), torch.nan)
    dropped_TG = torch.ones_like(value_TG, dtype=torch.bool)
    dropped_TG.scatter_(1, best(keys(value_TG), top_groups), False)
    key_TE.unflatten(-1, (groups, -1)).masked_fill_(dropped_TG[..., None], _NEVER)


def gate(logits_TE: Tensor, k: int, score: str, bias_E: Tensor | None, groups: int, top_groups: int, group_score: str,
         renormalise: bool, epsilon: str, scale: float, mask_T: Tensor | None, ids_TK: Tensor | None, *,
         out: tuple[Tensor, ...]) -> None:  # fmt: skip
    tokens, experts = logits_TE.shape
    step = max(1, SCRATCH // (_LOGIT * max(1, experts)))
    for start in range(0, tokens, step):
        part = slice(start, min(start + step, tokens))
        index_tK, count_t, weight_tK = (o[part] for o in out)
        logits_tE = logits_TE[part]
        valid_tK = torch.ones(index_tK.shape, dtype=torch.bool, device=index_tK.device)
        if ids_TK is not None:
            given_tK = ids_TK[part].long()
            valid_tK = (given_tK >= 0) & (given_tK < experts)
            # Valid ids to the front, each in its order.
            order_tK = (~valid_tK).to(torch.uint8).sort(dim=-1, stable=True).indices
            valid_tK = valid_tK.gather(1, order_tK)
            pick_tK = given_tK.gather(1, order_tK).masked_fill_(~valid_tK, 0)
            if experts == 0:
                score_tK = torch.zeros(pick_tK.shape, dtype=torch.float64, device=pick_tK.device)
            elif score == "softmax":
                score_tK = scores(logits_tE, score).gather(1, pick_tK)
            else:
                score_tK = scores(logits_tE.gather(1, pick_tK), score)
        else:
            score_tE = scores(logits_tE, score)
            selection_tE = score_tE.float()
            if bias_E is not None:
                selection_tE += bias_E
            key_tE = keys(selection_tE)
            if groups > top_groups:
                keep_(key_tE, selection_tE, groups, top_groups, group_score)
            pick_tK = best(key_tE, k)
            score_tK = score_tE.gather(1, pick_tK)
        if mask_T is not None:
            valid_tK = valid_tK & mask_T[part, None]
        weighs_tK = valid_tK & ~score_tK.isnan()
        score_tK = score_tK.masked_fill(~weighs_tK, 0.0)
        if renormalise:
            # One pick after the other: the order of the sum is stated.
            total_t = torch.zeros(len(score_tK), dtype=torch.float64, device=score_tK.device)
            for c in range(k):
                total_t += score_tK[:, c]
            if epsilon == "add":
                total_t += EPSILON
            elif epsilon == "clamp":
                total_t.clamp_(min=EPSILON)
            score_tK = score_tK / total_t[:, None]
        weight_tK.copy_((score_tK * scale).float().masked_fill_(~weighs_tK, 0.0))
        index_tK.copy_(pick_tK.masked_fill(~valid_tK, -1))
        count_t.copy_(valid_tK.sum(-1))
