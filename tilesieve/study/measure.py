"""Numbers of a run: loss of the text, divergence from dense, attention mass, overlap with exact."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilesieve.hf.session import Seen
from tilesieve.types import Selection

# Rows per pass over logits or probabilities: bounds the memory of the fp32 copies.
_ROWS = 128
# Chunks of rows, the last ones, whose dense attention is computed to compare with.
_CHUNKS = 2
# What `Watch.numbers` says of dense.
WHOLE = MappingProxyType(
    {"mass_mean": 1.0, "mass_worst": 1.0, "top1": 1.0, "overlap": None, "rate": None, "looked": None, "layers": ()}
)


class Divergence(NamedTuple):
    """KL(dense || sparse) of next-token distributions, nats; `at` is the token whose prediction is worst."""

    mean: float
    worst: float
    at: int | None


def loss(logits: Tensor, targets: Tensor) -> float:
    """Mean negative log-likelihood, nats per token. logits [T,V], targets int64 [T]; summed in fp64."""
    total = 0.0
    for logit, target in zip(logits.split(_ROWS), targets.split(_ROWS), strict=True):
        total += float(torch.nn.functional.cross_entropy(logit, target, reduction="none").double().sum())
    return total / len(targets)


def divergence(dense: Tensor, sparse: Tensor, first: int = 0) -> Divergence:
    """Over rows [T,V] of logits. Row 0 predicts token `first`."""
    rows = []
    for d, s in zip(dense.split(_ROWS), sparse.split(_ROWS), strict=True):
        log_d, log_s = torch.log_softmax(d, -1), torch.log_softmax(s, -1)
        kl = torch.nn.functional.kl_div(log_s, log_d, reduction="none", log_target=True)
        rows.append(kl.sum(-1, dtype=torch.float64))
    # Equal rows may come out a rounding below zero.
    whole = torch.cat(rows).clamp(min=0.0)
    return Divergence(float(whole.mean()), float(whole.max()), first + int(whole.argmax()))


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
    parts = []
    for selection in selections:
        index = selection.index.long()
        if index.dim() == 2:
            index = index[:, None]
        mask = torch.zeros(*index.shape[:2], length + 1, dtype=torch.bool, device=index.device)
        mask.scatter_(2, torch.where(index < 0, length, index), True)
        parts.append(mask[..., :length].repeat_interleave(heads // index.shape[1], 1))
    return torch.cat(parts).transpose(0, 1)


@dataclass
class LayerNumbers:
    """mass: share of dense attention on selected positions, mean and worst over heads and rows, and by head; top1:
    share of heads and rows whose set holds the heaviest position; overlap: share of the ideal set, as large as the
    row's own and with the same kept ends, that is in it."""

    layer: int
    mass_mean: float
    mass_worst: float
    overlap: float | None
    top1: float
    heads: list[float]


@dataclass
class Watch:
    """Looks at the last rows of each layer during a pass; call it as `Session.watch`.

    recorder: is told of every layer's selections too. first, last: the positions a policy keeps in any case.
    looked: the rows of the last pass that were compared with dense.
    """

    recorder: Callable[[Seen], None] | None = None
    first: int = 0
    last: int = 0
    looked: int = 0
    layers: list[LayerNumbers] = field(default_factory=list)
    rows: int = 0
    selected: int = 0

    def __call__(self, seen: Seen) -> None:
        if not seen.selections:
            return
        self.rows += sum(len(s.index) for s in seen.selections)
        self.selected += seen.selected
        last = seen.selections[-_CHUNKS:]
        rows = sum(s.index.shape[0] for s in last)
        dense = probabilities(seen, rows)
        heads, _, length = dense.shape
        mask = mask_of(last, heads, length)
        self.looked = rows
        kept = dense.masked_fill(~mask, 0.0).sum(-1).double()
        top1 = mask.gather(2, dense.argmax(-1, keepdim=True)).double().mean()
        self.layers.append(
            LayerNumbers(
                seen.layer, float(kept.mean()), float(kept.min()), overlap(dense, mask, self.first, self.last),
                float(top1), kept.mean(1).tolist(),
            )
        )  # fmt: skip
        if self.recorder is not None:
            self.recorder(seen)

    def numbers(self) -> dict[str, Any]:
        """Over all layers that selected. rate: rows that chose for themselves, of all."""
        count = max(1, len(self.layers))
        overlaps = [n.overlap for n in self.layers if n.overlap is not None]
        return {
            "mass_mean": sum(n.mass_mean for n in self.layers) / count,
            "mass_worst": min((n.mass_worst for n in self.layers), default=1.0),
            "top1": sum(n.top1 for n in self.layers) / count,
            "overlap": sum(overlaps) / len(overlaps) if overlaps else None,
            "rate": self.selected / self.rows if self.rows else None,
            "looked": self.looked,
            "layers": [asdict(n) for n in self.layers],
        }


def overlap(dense: Tensor, mask: Tensor, first: int = 0, last: int = 0) -> float:
    """Share of the ideal set that each row's set holds; mean over rows and heads.

    dense [H,R,L] weights of the last R of L rows, mask [H,R,L] what they read. The ideal set has as many positions as
    the row's own: the first and last ones that are kept in any case, then those with most weight summed over heads.
    """
    mass = dense.sum(0)
    rows, length = mass.shape
    column = torch.arange(length, device=mass.device)
    row = torch.arange(length - rows, length, device=mass.device)[:, None]
    kept = (column < first) | (column > row - last)
    order = torch.where(kept, torch.inf, mass).masked_fill(column > row, -1.0)
    size = mask[0].sum(-1)  # heads may choose apart, but as many each
    best = order.topk(max(1, int(size.max())), -1).indices
    taken = torch.arange(best.shape[1], device=mass.device) < size[:, None]
    ideal = torch.zeros_like(mask[0]).scatter_(-1, best, taken)
    return float(((mask & ideal).sum(-1) / size.clamp(min=1)).double().mean())
