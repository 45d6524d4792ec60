"""The nouns that flow between operators: frozen dataclasses of tensors.

Letters: T tokens, D width, E experts, K picks, H heads, G kv heads, L context, P page size,
R query rows, N grouped rows, B sequences, C width of a reduced key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Generator, Tensor

SPACES = ("expert", "key", "position", "block")


@dataclass(frozen=True)
class Selection:
    """What each row picked.

    index  int32 [R,K] or [R,G,K]; -1 where nothing was picked, at the tail
    count  int32 [R] or [R,G]: how many leading entries are valid
    weight fp32, index's shape, or None (attention recomputes its weights)
    space  what an index means: "expert"; "key" = column of a score row; "position" = place in
           the row's own sequence; "block"
    """

    index: Tensor
    count: Tensor
    weight: Tensor | None
    space: str

    def __post_init__(self) -> None:
        if self.space not in SPACES:
            raise ValueError(f"space is {self.space!r}; allowed: {', '.join(SPACES)}")
        if self.index.shape[:-1] != self.count.shape:
            raise ValueError(
                f"count has shape {tuple(self.count.shape)}; index {tuple(self.index.shape)} needs "
                f"{tuple(self.index.shape[:-1])}"
            )


@dataclass(frozen=True)
class Groups:
    """Rows ordered by expert.

    token   int32 [N]: the token a row came from; -1 for a row that is padding
    choice  int32 [N]: which of the token's K picks the row is; -1 for padding
    offsets int32 [E+1]: rows offsets[e] to offsets[e+1] belong to expert e, its padding last
    tiles   int32 [n,3]: (expert, first row, valid rows) per tile of a grouped GEMM; -1: unused
    bound   host bound on the rows of one expert
    row     int32 [T,K]: where pick (t, c) lies, -1: nowhere. The way back of token and choice;
            None where it was not made
    tile    most rows of one tile; 0: tiles holds none
    align   every group that has rows begins at a multiple of it
    """

    token: Tensor
    choice: Tensor
    offsets: Tensor
    tiles: Tensor
    bound: int
    row: Tensor | None = None
    tile: int = 0
    align: int = 1


@dataclass(frozen=True)
class Rows:
    """Where each query row stands: seq int32 [R], position int32 [R].

    A row sees positions 0..position of its own sequence; a negative position sees nothing.
    """

    seq: Tensor
    position: Tensor


@dataclass(frozen=True)
class Pages:
    """Which pages hold a sequence: table int32 [B,max], length int32 [B].

    max_length is a host bound on length: outputs are sized from it, nothing is read back.
    """

    table: Tensor
    length: Tensor
    page_size: int
    max_length: int


@dataclass(frozen=True)
class Slots:
    """Selected places in the pool: slot int64 or int32 [R,K] or [R,G,K] = page * page_size + offset.

    An entry < 0 or past the pool is skipped where it stands; count int32 says how many leading
    entries to look at.
    """

    slot: Tensor
    count: Tensor


@dataclass(frozen=True)
class Partial:
    """One part of an attention: out [R,H,Dv] and lse fp32 [R,H] (natural log, sink excluded)."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class KVCache:
    """Paged keys and values of one layer, with the tag of their byte format.

    token layout: key [pages,P,G,D], value [pages,P,G,Dv]; head layout: [pages,G,P,D] and
    [pages,G,P,Dv]. A tag says both: "kv_bf16.token", "kv_fp32.head", ... (tilesieve.formats.kv).
    """

    key: Tensor
    value: Tensor
    format: str


@dataclass(frozen=True)
class ScoreCache:
    """Paged reduced keys for scoring: data [pages,P,G,C], scale fp32 [pages,P,G] or None."""

    data: Tensor
    scale: Tensor | None
    format: str


@dataclass(frozen=True)
class Projection:
    """How a key of D dimensions is reduced to C for scoring; queries are reduced alike.

    dims  int64 [C]: keep these dimensions (a prefix, or both halves of rotary pairs), or None
    basis fp32 [G,D,C]: project on these columns, or None
    mean  fp32 [G,D] taken off keys (not queries) before the basis, or None. It moves every score
          of a row by the same amount, so no ranking and no softmax changes.
    width D; `columns` is C
    """

    kind: str
    dims: Tensor | None
    basis: Tensor | None
    mean: Tensor | None
    width: int

    @property
    def columns(self) -> int:
        kept = self.dims if self.basis is None else self.basis
        return 0 if kept is None else kept.shape[-1]


@dataclass(frozen=True)
class Case:
    """A named set of inputs on which an operator is tried, by tests, bench and ledger alike.

    build(generator) returns the keyword arguments of the public operator, on CPU. `error` is the
    largest difference from the fp64 reference that an implementation may show, relative to the
    largest magnitude of the reference's output; 0 means the same bits. `invalid` marks inputs that
    are harmless by contract but that `checked()` must refuse.
    """

    name: str
    build: Callable[[Generator], dict[str, Any]]
    error: float = 0.0
    invalid: bool = False
