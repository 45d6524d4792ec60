"""One sequence running through a model: its caches, its policy, and what each layer remembers.

A session is passed to the model as a keyword argument and reaches the attention of every layer
that way; nothing is fetched from a global.

    session = Session.new(shape, policy, tokens=4096)
    logits = forward(model, ids, session, "prefill")      # dense, fills the caches
    logits = forward(model, next_id, session, "step")     # one token, by the policy

Ways to run: "dense" (every row sees everything), "prefill" (dense, and leaves its last queries, from
which the sets that decode starts with are chosen), "rows" (every row selects for itself), "step"
(one token, with memory).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tilesieve.cache.pool import LayerCache, Pool
from tilesieve.hf.shape import Shape
from tilesieve.layers.attention import Kept, Memory, Reads, attend_rows, attend_step, blank, projection_of, summarise
from tilesieve.layers.dense import contiguous, dense_rows
from tilesieve.ops.gqa_decode.op import gqa_decode
from tilesieve.ops.kv_append.op import kv_append
from tilesieve.ops.score_append.op import score_append
from tilesieve.policies import Policy
from tilesieve.types import Pages, Rows, Selection

WAYS = ("dense", "prefill", "rows", "step")
# Queries of the prompt whose attention mass chooses the sets that decode starts from.
PROMPT_QUERIES = 32


@dataclass(frozen=True)
class Seen:
    """What one layer did with some rows, told to `Session.watch`. q [R,H,D] of rows start, start+1, ...

    selections: of the last rows that had one; selected: how many rows chose for themselves.
    """

    layer: int
    start: int
    q: Tensor
    key: Tensor
    value: Tensor
    scale: float
    selections: tuple[Selection, ...]
    selected: int = 0


@dataclass
class Session:
    """State of one sequence. `pool` and `memories` are empty until the first forward."""

    shape: Shape
    policy: Policy | None
    tokens: int
    pool: Pool | None = None
    seq: int = 0
    way: str = "dense"
    start: int = 0
    watch: Callable[[Seen], None] | None = None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    prompt: int | None = None
    slot: Tensor | None = None
    pages: Pages | None = None
    rows: Rows | None = None
    memories: dict[int, Memory] = field(default_factory=dict)
    tails: dict[int, Tensor] = field(default_factory=dict)
    prompt_end: int = 0
    scale: float | None = None
    _count: int = 0

    @classmethod
    def new(cls, shape: Shape, policy: Policy | None, *, tokens: int, prompt: int | None = None) -> "Session":
        """Room for `tokens`. `prompt`: how many leading positions a PCA projection may look at (all)."""
        if tokens < 1:
            raise ValueError(f"tokens is {tokens}; allowed: an integer >= 1")
        if shape.context is not None and tokens > shape.context:
            raise ValueError(f"tokens is {tokens}; the model's context is {shape.context}")
        return cls(shape, policy, tokens, prompt=prompt)

    def branch(self, policy: Policy | None = None) -> "Session":
        """An independent copy, to continue in another way from here."""
        if self.pool is None:
            raise ValueError("a session that has seen no token cannot be branched")
        memories = {layer: replace(m, age=list(m.age), due=list(m.due)) for layer, m in self.memories.items()}
        return replace(self, policy=policy or self.policy, pool=self.pool.clone(), memories=memories,
                       tails=dict(self.tails))  # fmt: skip

    def begin(self, count: int, way: str) -> None:
        """Make room for `count` tokens; all layers of the forward that follows share what is set here."""
        if way not in WAYS:
            raise ValueError(f"way is {way!r}; allowed: {', '.join(WAYS)}")
        if way in ("rows", "step") and self.policy is None:
            raise ValueError(f"policy is None; {way!r} needs one")
        if way == "step" and count != 1:
            raise ValueError(f"ids holds {count} tokens; a step takes 1")
        self.way = way
        self._count = count
        self.slot = None

    def length(self) -> int:
        return self.pool.book.length(self.seq) if self.pool is not None else 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None) -> Tensor:
        """Attention of one layer. q [R,H,D], k [R,G,D], v [R,G,Dv], after rope -> [R,H,Dv]."""
        if self.slot is None:
            self._allocate(q, k, v)
        assert self.pool is not None and self.slot is not None and self.pages is not None and self.rows is not None
        cache = self.pool.layers[layer]
        with self.around():
            kv_append(k, v, cache.kv, self.slot)
            policy = self.policy
            if policy is not None and not policy.dense(layer) and window is None:
                self._reduce(layer, cache, k)
            reads = Reads(cache.kv, cache.score, cache.projection, self.pages)
            kept = Kept()
            if policy is None or policy.dense(layer) or window is not None or self.way in ("dense", "prefill"):
                out = self._dense(q, reads, scale, window)
            elif self.way == "rows":
                out = attend_rows(q, reads, self.seq, self.start, policy, scale=scale, keep=kept)
            else:
                memory = self._memory(layer, q, reads, policy, scale)
                out = attend_step(q, reads, self.rows, [self.start], policy, memory, scale=scale)
                kept.selections.append(memory.selection)
                kept.selected += [0] * memory.due[0]
        self.scale = scale
        if self.way == "prefill" and window is None:
            before = [self.tails[layer]] if layer in self.tails else []
            self.tails[layer] = torch.cat([*before, q])[-PROMPT_QUERIES:]
            self.prompt_end = self.start + q.shape[0]
        if self.watch is not None:
            key, value = contiguous(cache.kv, self.pages, self.seq, self.start + q.shape[0])
            self.watch(Seen(layer, self.start, q, key, value, scale or q.shape[-1] ** -0.5,
                            tuple(kept.selections), len(kept.selected)))  # fmt: skip
        return out

    def _allocate(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        """At the first layer of a forward: slots for the new tokens, and the nouns all layers share."""
        if k.shape[0] != self._count:
            raise ValueError(
                f"ids holds {self._count} tokens and the model sent {k.shape[0]}; a session runs one sequence"
            )
        if self.pool is None:
            dtype = {torch.float32: "kv_fp32", torch.bfloat16: "kv_bf16", torch.float16: "kv_fp16"}[k.dtype]
            self.pool = Pool.new(layers=self.shape.layers, tokens=self.tokens, heads=k.shape[1], width=k.shape[2],
                                 value_width=v.shape[2], format=f"{dtype}.head", device=str(k.device))  # fmt: skip
            self.seq = self.pool.book.open()
        self.start = self.pool.book.length(self.seq)
        if self.start + self._count > self.tokens:
            raise ValueError(f"tokens is {self.tokens}: {self.start} are used and {self._count} more do not fit")
        places = self.pool.book.extend(self.seq, self._count)
        self.slot = torch.tensor(places, device=q.device)
        self.pages = self.pool.pages((self.seq,))
        position = torch.arange(self.start, self.start + self._count, dtype=torch.int32, device=q.device)
        self.rows = Rows(torch.zeros_like(position), position)

    def prime(self) -> None:
        """After a prompt, before the first step: reduce the prompt's keys and choose the sets to start from.

        The first step would do the same; calling this keeps it out of that step's costs.
        """
        if self.policy is None or self.pool is None:
            return
        self.pages = self.pool.pages((self.seq,))
        with self.around():
            for layer, tail in self.tails.items():
                if self.policy.dense(layer):
                    continue
                self._prepare(layer, self.prompt_end)
                cache = self.pool.layers[layer]
                reads = Reads(cache.kv, cache.score, cache.projection, self.pages)
                first = self.prompt_end - tail.shape[0]
                self.memories[layer] = summarise(tail, reads, self.seq, first, self.policy, scale=self.scale)

    def _prepare(self, layer: int, known: int) -> None:
        """Give the layer its score cache if the policy needs one and it has none, with the first `known` keys in it."""
        assert self.pool is not None and self.policy is not None and self.pages is not None
        cache, scoring = self.pool.layers[layer], self.policy.scoring
        if scoring.columns is None or cache.score is not None:
            return
        keys = contiguous(cache.kv, self.pages, self.seq, self.pool.book.length(self.seq))[0].transpose(0, 1)
        self.pool.add_scores(layer, projection_of(scoring, keys[: self.prompt], self.shape.rotary), scoring.format)
        assert cache.score is not None and cache.projection is not None
        if known:
            book = self.pool.book
            slot = torch.tensor([book.slot(self.seq, p) for p in range(known)], device=keys.device)
            score_append(keys[:known], cache.projection, cache.score, slot)

    def _reduce(self, layer: int, cache: LayerCache, k: Tensor) -> None:
        """Append the new keys to the layer's score cache, which is made when it is first needed."""
        self._prepare(layer, self.start)
        if cache.score is not None and cache.projection is not None:
            assert self.slot is not None
            score_append(k, cache.projection, cache.score, self.slot)

    def _dense(self, q: Tensor, reads: Reads, scale: float | None, window: int | None) -> Tensor:
        assert self.rows is not None
        if q.shape[0] == 1 and window is None:
            return gqa_decode(q, reads.kv, reads.pages, self.rows, scale=scale).out.to(q.dtype)
        return dense_rows(q, reads.kv, reads.pages, self.seq, self.start, scale=scale, window=window)

    def _memory(self, layer: int, q: Tensor, reads: Reads, policy: Policy, scale: float | None) -> Memory:
        """The layer's memory: of the last step, of the prompt, or an empty one that must select."""
        if layer not in self.memories:
            tail = self.tails.get(layer)
            if tail is None:
                self.memories[layer] = blank(policy, self.shape.kv_heads, q)
            else:
                first = self.prompt_end - tail.shape[0]
                memory = summarise(tail, reads, self.seq, first, policy, scale=scale)
                # Dense steps may have come between the prompt and this one.
                self.memories[layer] = replace(memory, age=[self.start - self.prompt_end])
        return self.memories[layer]
