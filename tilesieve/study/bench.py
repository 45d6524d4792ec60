"""What the parts of a study share: the model, loaded when first needed, dense passes, and a policy beside one."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.attention import forward, install
from tilesieve.hf.load import Checkpoint
from tilesieve.hf.session import Seen, Session
from tilesieve.hf.shape import Shape
from tilesieve.ledger.ledger import Ledger
from tilesieve.ops.run import observe
from tilesieve.policies import Policy
from tilesieve.study.measure import Divergence, Watch, divergence, loss
from tilesieve.study.plan import Plan

Tell = Callable[[str, float], None]
# fp32: what a run loses is then the selection's doing, not a format's.
DTYPE = torch.float32


@dataclass(frozen=True)
class Dense:
    """Dense attention over the first `tokens`; the second half is scored.

    logits [scored,V] predict the scored tokens, last [V] the one after them; session holds the caches.
    """

    tokens: int
    logits: Tensor
    last: Tensor
    targets: Tensor
    nll: float
    session: Session
    book: Ledger
    seconds: float

    @property
    def scored_from(self) -> int:
        return self.tokens - len(self.targets)


@dataclass(frozen=True)
class Trial:
    """One policy over the same text: nll in nats per scored token, KL from dense, and what was seen on the way."""

    nll: float
    dense_nll: float
    kl: Divergence
    watch: Watch
    book: Ledger
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """As a run or a rung of study.json holds them."""
        return {**score_numbers(self.nll, self.dense_nll, self.kl), **self.watch.numbers()}


def score_numbers(nll: float, dense_nll: float, kl: Divergence) -> dict[str, Any]:
    """delta is the relative change of perplexity; worst_at counts from the text's first token."""
    exact = torch.tensor([nll, nll - dense_nll], dtype=torch.float64)
    return {
        "perplexity": float(exact[0].exp()), "nll": nll, "delta": float(exact[1].expm1()),
        "kl_mean": kl.mean, "kl_worst": kl.worst, "worst_at": kl.at,
    }  # fmt: skip


@dataclass
class Bench:
    """One model and one text on one machine."""

    plan: Plan
    checkpoint: Checkpoint
    ids: Tensor
    tell: Tell
    _model: Any = None
    _dense: dict[int, Dense] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return self.checkpoint.shape

    @property
    def tokenizer(self) -> Any:
        return self.checkpoint.tokenizer

    @property
    def model(self) -> Any:
        if self._model is None:
            self.tell("loading the model", 0.0)
            self._model = self.checkpoint.model(DTYPE)
            install(self._model)
        return self._model

    def dense(self, tokens: int) -> Dense:
        """The dense pass over the first `tokens`, run once. Raises ValueError where no layer can select."""
        if tokens not in self._dense:
            model, start = self.model, tokens // 2
            book, began = Ledger(), time.perf_counter()
            session = Session.new(self.shape, None, tokens=tokens + self.plan.steps, prompt=start)
            self.watched(session, book, "dense" if tokens == self.plan.tokens else f"dense, {tokens} tokens")
            with book.phase("pass"):
                logits = forward(model, self.ids[:tokens], session, "prefill", keep=tokens - start + 1)
            if not session.tails:
                raise ValueError(f"model is {self.checkpoint.path}: every layer limits itself to a window; none can "
                                 "select")  # fmt: skip
            targets = self.ids[start:tokens]
            self._dense[tokens] = Dense(tokens, logits[:-1], logits[-1], targets, loss(logits[:-1], targets), session,
                                        book, time.perf_counter() - began)  # fmt: skip
        return self._dense[tokens]

    def trial(self, policy: Policy, tokens: int, label: str, watch: Watch | None = None) -> Trial:
        """The policy over the first `tokens`: every row of every layer that may select does."""
        dense = self.dense(tokens)
        book, watch, began = Ledger(), Watch() if watch is None else watch, time.perf_counter()
        if policy.scoring.kind != "window":  # a window keeps nothing but ends; it is held against the free choice
            watch.first, watch.last = policy.first, policy.last
        session = Session.new(self.shape, policy, tokens=tokens, prompt=dense.scored_from)
        self.watched(session, book, label, watch)
        with book.phase("pass"):
            logits = forward(self.model, self.ids[:tokens], session, "rows", keep=len(dense.targets) + 1)[:-1]
        nll = loss(logits, dense.targets)
        kl = divergence(dense.logits, logits, first=dense.scored_from)
        return Trial(nll, dense.nll, kl, watch, book, time.perf_counter() - began)

    def decode_bytes(self, policy: Policy | None, tokens: int, steps: int) -> int:
        """What the attention of one decoded token must move after the first `tokens`, all layers, mean of `steps`.

        The tokens decoded are the text's own predictions: greedy from the dense prompt's caches.
        """
        dense, book = self.dense(tokens), Ledger()
        session = dense.session.branch(policy)
        session.watch, session.around = None, lambda: observe(book)
        with book.phase("prompt"):
            session.prime()
        token = int(dense.last.argmax())
        with book.phase("decode"):
            for _ in range(steps):
                way = "dense" if session.policy is None else "step"
                token = int(forward(self.model, torch.tensor([token]), session, way)[-1].argmax())
        return moved(book) // steps

    def watched(self, session: Session, book: Ledger, label: str, watch: Watch | None = None) -> None:
        """Observe the operators of each layer, tell the progress, and look at what was selected."""
        session.around = lambda: observe(book)

        def look(seen: Seen) -> None:
            self.tell(label, (seen.layer + 1) / self.shape.layers)
            if watch is not None:
                watch(seen)

        session.watch = look


def moved(book: Ledger) -> int:
    """Bytes of the decode steps a book has seen, appending not counted: dense must do that too."""
    return sum(s["bytes_min"] for s in book.as_dicts() if s["phase"] == "decode" and s["stage"] != "around")
