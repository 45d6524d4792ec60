"""Sparse attention of one layer: score, select, plan, compute, combine.

Two forms say the same five lines. `attend_step`: one new token per row, reading slots, with a
memory between steps. `attend_rows`: many rows of one sequence, each with a selection of its own,
which acts as a mask (nothing to plan).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tilesieve.formats.kv import token_views
from tilesieve.layers.dense import dense_rows
from tilesieve.layers.projections import identity, pca, prefix, rotary_pairs
from tilesieve.layers.reuse import NEVER, extended, sources
from tilesieve.layers.unselected import elsewhere
from tilesieve.ops.gqa_decode.op import gqa_decode
from tilesieve.ops.lowrank.op import lowrank
from tilesieve.ops.merge.op import merge
from tilesieve.ops.slots.op import slots
from tilesieve.ops.sparse_gqa.op import sparse_gqa
from tilesieve.ops.sparse_gqa_prefill.op import sparse_gqa_prefill
from tilesieve.ops.topk.op import topk
from tilesieve.policies import Policy, Scoring
from tilesieve.types import KVCache, Pages, Projection, Rows, ScoreCache, Selection

# Rows per pass of attend_rows: bounds the scores alive at once to 128 * H * L numbers.
CHUNK = 128


@dataclass
class Memory:
    """What a layer remembers between decode steps, one entry per row.

    selection and selected_at: the last set and the position it was chosen at; query: the last
    step's; age: steps since the selection; due: whether the last step selected.
    """

    selection: Selection
    selected_at: Tensor
    age: list[int]
    due: list[bool]
    query: Tensor | None = None


@dataclass
class Kept:
    """What `attend_rows` selected: one Selection per chunk, and which of its rows chose for themselves."""

    selections: list[Selection] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Reads:
    """What a layer reads: its cache, reduced keys where the policy scores by them, and the pages."""

    kv: KVCache
    score: ScoreCache | None
    projection: Projection | None
    pages: Pages


def projection_of(scoring: Scoring, keys: Tensor, rotary: int | None = None) -> Projection:
    """The projection a policy asks for; keys [N,G,D] are those of the prompt, which only "pca" looks at.

    rotary: leading dimensions that a half-split rope turns (D by default), for the rotary pairs.
    """
    width, columns = keys.shape[2], scoring.columns
    assert columns is not None, f"{scoring.kind!r} scoring has no projection"
    if scoring.kind == "pca":
        return pca(keys, columns)
    if scoring.kind == "prefix":
        return prefix(width, columns, keys.device)
    which = {"pairs_slow": "slowest", "pairs_fast": "fastest"}[scoring.kind]
    return rotary_pairs(width, columns, which, rotary, device=keys.device)


def score(q: Tensor, reads: Reads, rows: Rows, policy: Policy, scale: float | None) -> Tensor | None:
    """Scores fp32 [R,H,L], or None where the policy needs none."""
    if policy.scoring.kind == "window":
        return None
    if policy.scoring.kind == "exact":
        key, _ = token_views(reads.kv)
        # The key cache itself, read as a cache of scores that keeps every dimension.
        format = reads.kv.format.partition(".")[0].replace("kv_", "score_")
        return lowrank(
            q, identity(q.shape[-1], q.device), ScoreCache(key, None, format), reads.pages, rows, scale=scale
        )
    if reads.score is None or reads.projection is None:
        raise ValueError(f"score cache is None; {policy.scoring.kind!r} scoring reads one")
    return lowrank(q, reads.projection, reads.score, reads.pages, rows, scale=scale)


def select(scores: Tensor | None, rows: Rows, policy: Policy, groups: int) -> Selection:
    """The policy's set for each row, positions ascending."""
    if scores is None:
        return window_selection(rows, policy)
    return topk(scores, k=policy.k, end=rows.position + 1, share=policy.share, groups=groups, reduce=policy.reduce,
                first=policy.first, last=policy.last, local_k=policy.local_k, block=policy.block,
                space="position")  # fmt: skip


def window_selection(rows: Rows, policy: Policy) -> Selection:
    """The first positions and the most recent, k in all; needs no scores."""
    seen = (rows.position + 1).clamp(min=0)[:, None]
    column = torch.arange(policy.k, dtype=torch.int32, device=seen.device)[None]
    recent = torch.where(column < policy.first, column, seen - policy.k + column)
    index = torch.where(seen <= policy.k, torch.where(column < seen, column, -1), recent)
    return Selection(index.int(), seen[:, 0].clamp(max=policy.k).int(), None, "position")


def attend_rows(q: Tensor, reads: Reads, seq: int, start: int, policy: Policy, *, scale: float | None = None,
                keep: Kept | None = None) -> Tensor:  # fmt: skip
    """Rows start, start + 1, ... of sequence `seq`, each with the set that decode would give it. q [R,H,D] -> [R,H,Dv].

    The keys of these rows are in the cache already. Where the policy keeps a set for several steps, rows
    do the same: the first selects, later ones take the last set and what came after it. `keep` collects
    what was selected.
    """
    groups = token_views(reads.kv)[0].shape[2]
    dense = max(0, min(q.shape[0], policy.dense_below - start))
    parts = [dense_rows(q[:dense], reads.kv, reads.pages, seq, start, scale=scale)] if dense else []
    source = sources(q, dense, policy)
    for low in range(dense, q.shape[0], CHUNK):
        high = min(low + CHUNK, q.shape[0])
        position = torch.arange(start + low, start + high, dtype=torch.int32, device=q.device)
        rows = Rows(torch.full_like(position, seq), position)
        pages = replace(reads.pages, max_length=start + high)  # no row of this chunk sees further
        part = replace(reads, pages=pages)

        # The rows that select: all of them, or the few whose sets the others take. The last one before
        # the chunk selects again, so that a chunk needs nothing of the one before.
        chosen = sorted(set(source[low - dense : high - dense]))
        which = torch.tensor(chosen, device=q.device)
        choosing = Rows(torch.full_like(which, seq).int(), (which + start).int())
        scores = score(q[which], part, choosing, policy, scale)
        selection = select(scores, choosing, policy, groups)
        if len(chosen) < high - low or chosen[0] < low:
            place = {row: n for n, row in enumerate(chosen)}
            taken = torch.tensor([place[row] for row in source[low - dense : high - dense]], device=q.device)
            selection = extended(selection, taken, choosing.position[taken], position)
        partial = sparse_gqa_prefill(q[low:high], reads.kv, pages, rows, selection, scale=scale)
        both = [partial]
        if policy.unselected == "estimated" and scores is not None:
            both.append(elsewhere(scores, selection, partial))
        parts.append(merge(both, dtype=q.dtype).out)

        if keep is not None:
            keep.selections.append(selection)
            keep.selected += [row for row in chosen if row >= low]
    return torch.cat(parts) if parts else q.new_empty(0, q.shape[1], token_views(reads.kv)[1].shape[3])


def attend_step(q: Tensor, reads: Reads, rows: Rows, positions: Sequence[int], policy: Policy, memory: Memory, *,
                scale: float | None = None) -> Tensor:  # fmt: skip
    """One token per row. q [R,H,D] -> [R,H,Dv]; `positions` are rows.position as the host knows them.

    The new token's key is in the cache already. Between selections the set is the last one and
    what was appended since. Changes `memory`.
    """
    short = [position < policy.dense_below for position in positions]
    if all(short):
        remember(q, memory, [False] * len(short))
        return gqa_decode(q, reads.kv, reads.pages, rows, scale=scale).out.to(q.dtype)
    groups = token_views(reads.kv)[0].shape[2]
    due = [d and not s for d, s in zip(decide(q, memory, policy), short, strict=True)]

    scores = None
    if any(due):
        scores = score(q, reads, rows, policy, scale)
        adopt(memory, select(scores, rows, policy, groups), rows, due)
    places = [slots(memory.selection, reads.pages, rows)]
    since = appended(memory, rows, [d or s for d, s in zip(due, short, strict=True)])
    if since is not None:
        places.append(slots(since, reads.pages, rows))
    parts = [sparse_gqa(q, reads.kv, place, scale=scale) for place in places]
    if policy.unselected == "estimated" and scores is not None:
        parts.append(elsewhere(scores, memory.selection, parts[0]))
    out = merge(parts, dtype=q.dtype).out

    remember(q, memory, due)
    if any(short):
        full = gqa_decode(q, reads.kv, reads.pages, rows, scale=scale).out.to(q.dtype)
        out = torch.where(torch.tensor(short, device=q.device)[:, None, None], full, out)
    return out


def decide(q: Tensor, memory: Memory, policy: Policy) -> list[bool]:
    """Per row: does this step select? The similarity is the mean over heads of q's cosine with the last q."""
    similarity = [float("nan")] * q.shape[0]
    if memory.query is not None:
        similarity = torch.cosine_similarity(q.double(), memory.query.double(), dim=-1).mean(-1).tolist()
    return [
        policy.reselect.due(age + 1, similar, before)
        for age, similar, before in zip(memory.age, similarity, memory.due, strict=True)
    ]


def adopt(memory: Memory, fresh: Selection, rows: Rows, due: list[bool]) -> None:
    """Rows that are due take the fresh set; the others keep theirs."""
    old, new = memory.selection, fresh
    if all(due):
        memory.selection, memory.selected_at = new, rows.position
        return
    chosen = torch.tensor(due, device=new.index.device)
    wide = chosen.view(-1, *[1] * (new.index.dim() - 1))
    index = torch.where(wide, new.index, old.index)
    count = torch.where(chosen.view(-1, *[1] * (new.count.dim() - 1)), new.count, old.count)
    memory.selection = Selection(index, count, None, "position")
    memory.selected_at = torch.where(chosen, rows.position, memory.selected_at)


def appended(memory: Memory, rows: Rows, skip: list[bool]) -> Selection | None:
    """Positions after each row's selection up to itself; None where no row needs them.

    Rows to skip have just selected, or attend to everything; their entries mean nothing.
    """
    width = max((0 if s else age + 1 for age, s in zip(memory.age, skip, strict=True)), default=0)
    if width == 0:
        return None
    count = (rows.position - memory.selected_at).clamp(0, width)
    column = torch.arange(width, dtype=torch.int32, device=count.device)[None]
    index = torch.where(column < count[:, None], memory.selected_at[:, None] + 1 + column, -1)
    return Selection(index.int(), count.int(), None, "position")


def remember(q: Tensor, memory: Memory, due: list[bool]) -> None:
    memory.age = [0 if d else age + 1 for age, d in zip(memory.age, due, strict=True)]
    memory.due = list(due)
    memory.query = q


def summarise(q: Tensor, reads: Reads, seq: int, start: int, policy: Policy, *, scale: float | None = None) -> Memory:
    """What a dense prompt leaves for decode: the k positions with most attention mass from its last queries.

    q [w,H,D]: the queries of positions start..start+w-1, the last of the prompt. Mass is summed
    over them, and over the heads that share a set. Returns the memory of one row.
    """
    key, _ = token_views(reads.kv)
    groups, heads, length = key.shape[2], q.shape[1], start + q.shape[0]
    position = torch.arange(start, length, dtype=torch.int32, device=q.device)
    rows = Rows(torch.full_like(position, seq), position)
    exact = replace(policy, scoring=replace(policy.scoring, kind="exact", columns=None, format="score_fp32"))
    scores = score(q, reads, rows, exact, scale)
    assert scores is not None
    mass_HL = torch.softmax(scores, -1).sum(0)
    sets = {"layer": 1, "kv_head": groups, "q_head": heads}[policy.share]
    mass = mass_HL.view(sets, heads // sets, -1).sum(1)[None]
    last = torch.tensor([length - 1], dtype=torch.int32, device=q.device)
    selection = topk(mass, k=policy.k, end=last + 1, share="q_head", first=policy.first, last=policy.last,
                     space="position")  # fmt: skip
    if policy.share == "layer":
        selection = Selection(selection.index[:, 0], selection.count[:, 0], None, "position")
    return Memory(selection, last, [0], [False])


def blank(policy: Policy, groups: int, q: Tensor) -> Memory:
    """The memory of rows that have chosen nothing yet: whatever the policy, their next step selects."""
    sets = {"layer": (), "kv_head": (groups,), "q_head": (q.shape[1],)}[policy.share]
    rows = q.shape[0]
    index = torch.full((rows, *sets, policy.k), -1, dtype=torch.int32, device=q.device)
    count = torch.zeros(rows, *sets, dtype=torch.int32, device=q.device)
    never = torch.full((rows,), -1, dtype=torch.int32, device=q.device)
    return Memory(Selection(index, count, None, "position"), never, [NEVER] * rows, [True] * rows)
