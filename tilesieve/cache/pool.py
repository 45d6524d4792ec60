"""The tensors that the pages point into: keys, values and reduced keys of every layer."""

import dataclasses
from dataclasses import dataclass

import torch

from tilesieve.cache.pages import PageBook
from tilesieve.formats.kv import new_kv, token_views
from tilesieve.formats.score import new_scores
from tilesieve.types import KVCache, Pages, Projection, ScoreCache


@dataclass
class LayerCache:
    """One layer's caches. `score` and `projection` are None until a policy needs reduced keys."""

    kv: KVCache
    score: ScoreCache | None = None
    projection: Projection | None = None


class Pool:
    """All layers over one page book: a page number means the same page in every layer."""

    def __init__(self, book: PageBook, layers: list[LayerCache]) -> None:
        self.book = book
        self.layers = layers

    @classmethod
    def new(cls, *, layers: int, tokens: int, heads: int, width: int, value_width: int | None = None,
            format: str = "kv_fp32.head", page_size: int = 64, device: str = "cpu") -> "Pool":  # fmt: skip
        """Room for `tokens` in each of `layers`: heads G, key width D, value width Dv."""
        pages = -(-tokens // page_size)
        caches = [
            LayerCache(new_kv(format, pages, page_size, heads, width, value_width, device)) for _ in range(layers)
        ]
        return cls(PageBook(pages, page_size), caches)

    def pages(self, seqs: tuple[int, ...]) -> Pages:
        """The Pages noun of these sequences, in this order."""
        tables = [self.book.table(seq) for seq in seqs]
        lengths = [self.book.length(seq) for seq in seqs]
        widest = max((len(t) for t in tables), default=0)
        device = self.layers[0].kv.key.device
        table = torch.tensor([[*t, *[-1] * (widest - len(t))] for t in tables], dtype=torch.int32, device=device)
        return Pages(
            table.view(len(seqs), widest),
            torch.tensor(lengths, dtype=torch.int32, device=device),
            self.book.page_size,
            max(lengths, default=0),
        )

    def add_scores(self, layer: int, projection: Projection, format: str) -> None:
        """Give a layer its own cache of reduced keys, empty."""
        cache = self.layers[layer]
        heads = token_views(cache.kv)[0].shape[2]
        cache.projection = projection
        cache.score = new_scores(
            format, self.book.pages, self.book.page_size, heads, projection.columns, cache.kv.key.device
        )

    def clone(self) -> "Pool":
        """An independent copy: a continuation may be tried on it and thrown away."""

        def copied(cache: LayerCache) -> LayerCache:
            kv = dataclasses.replace(cache.kv, key=cache.kv.key.clone(), value=cache.kv.value.clone())
            score = cache.score and dataclasses.replace(
                cache.score,
                data=cache.score.data.clone(),
                scale=None if cache.score.scale is None else cache.score.scale.clone(),
            )
            return LayerCache(kv, score, cache.projection)

        return Pool(self.book.copy(), [copied(cache) for cache in self.layers])
