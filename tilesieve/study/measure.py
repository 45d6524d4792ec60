"""Numbers of a run: loss of the text, divergence from dense, attention mass, overlap with exact."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tilesieve.hf.session import Seen
from tilesieve.types import Selection

# Rows per pass over logits or probabilities: bounds the memory of the fp32 copies.
_ROWS = 128


def loss(logits: Tensor, targets: Tensor) -> float:
    """Mean negative log-likelihood, nats per token. logits [T,V], targets int64 [T]; summed in fp64."""
    total = 0.0
    for logit, target in zip(logits.split(_ROWS), targets.split(_ROWS), strict=True):
        total += float(torch.nn.functional.cross_entropy(logit, target, reduction="none").double().sum())
    return total / len(targets)


def divergence(dense: Tensor, sparse: Tensor) -> tuple[float, float]:
    """KL(dense || sparse) of the next-token distributions, nats: (mean, worst) over rows. [T,V] each."""
    rows = []
    for d, s in zip(dense.split(_ROWS), sparse.split(_ROWS), strict=True):
        log_d, log_s = torch.log_softmax(d, -1), torch.log_softmax(s, -1)
        rows.append(torch.nn.functional.kl_div(log_s, log_d, reduction="none", log_target=True).double().sum(-1))
    # Equal rows may come out a rounding below zero.
    kl = torch.cat(rows).clamp(min=0.0)
    return float(kl.mean()), float(kl.max())


def probabilities(seen: Seen, rows: int) -> Tensor:
    """Dense attention fp32 [H,rows,L] of the last `rows` rows, by direct computation."""
    q = seen.q[-rows:].float()
    heads, groups = q.shape[1], seen.key.shape[0]
    key = seen.key.float().repeat_interleave(heads // groups, 0)
    scores = torch.matmul(q.transpose(0, 1), key.transpose(1, 2)).mul_(seen.scale)
    end = seen.start + seen.q.shape[0]
    column = torch.arange(end, device=q.device)
    row = torch.arange(end - rows, end, device=q.device)[:, None]
    return torch.softmax(scores.masked_fill_(column > row, -torch.inf), -1)


def mask_of(selections: tuple[Selection, ...], heads: int, length: int) -> Tensor:
    """Boolean [H,rows,L]: what the rows of these selections may read."""
    index = torch.cat([s.index for s in selections]).long()
    if index.dim() == 2:
        index = index[:, None]
    sets = index.shape[1]
    mask = torch.zeros(index.shape[0], sets, length + 1, dtype=torch.bool, device=index.device)
    mask.scatter_(2, torch.where(index < 0, length, index), True)
    return mask[..., :length].repeat_interleave(heads // sets, 1).transpose(0, 1)


@dataclass
class LayerNumbers:
    """mass: share of dense attention on selected positions; overlap with exact shared top-k at the same k."""

    layer: int
    mass_mean: float
    mass_worst: float
    overlap: float | None


@dataclass
class Watch:
    """Looks at the last rows of each layer during a pass; call it as `Session.watch`."""

    layers: list[LayerNumbers] = field(default_factory=list)
    timeline_layers: tuple[int, ...] = ()
    timeline: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)
    every: int = 64

    def __call__(self, seen: Seen) -> None:
        if not seen.selections:
            return
        last = seen.selections[-2:]
        rows = sum(s.index.shape[0] for s in last)
        dense = probabilities(seen, rows)
        heads, _, length = dense.shape
        mask = mask_of(last, heads, length)
        kept = dense.masked_fill(~mask, 0.0).sum(-1).double()
        self.layers.append(
            LayerNumbers(
                seen.layer, float(kept.mean()), float(kept.min()), overlap(dense, mask, last[0].index.shape[-1])
            )
        )
        if seen.layer in self.timeline_layers:
            self.timeline[seen.layer] = sampled(seen, self.every)


def overlap(dense: Tensor, mask: Tensor, k: int) -> float:
    """Share of the k positions with most summed mass that each row's set holds too; mean over rows and heads."""
    mass = dense.sum(0)
    rows, length = mass.shape
    visible = (
        torch.arange(length, device=mass.device) <= torch.arange(length - rows, length, device=mass.device)[:, None]
    )
    best = mass.masked_fill(~visible, -1.0).topk(min(k, length), -1).indices
    ideal = torch.zeros_like(visible).scatter_(-1, best, True) & visible
    return float(((mask & ideal).sum(-1) / ideal.sum(-1)).double().mean())


def sampled(seen: Seen, every: int) -> list[tuple[int, list[int]]]:
    """(query position, its selected positions) of every `every`-th row, heads that differ united."""
    found, row = [], seen.start + seen.q.shape[0] - sum(s.index.shape[0] for s in seen.selections)
    for selection in seen.selections:
        for index in selection.index:
            if row % every == every - 1:
                found.append((row, sorted({p for p in index.flatten().tolist() if p >= 0})))
            row += 1
    return found
