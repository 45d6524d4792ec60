"""What lowrank must cost. Terms: the matrix products (a basis, the scores), a product per score
for `scale` and one more where keys have scales, 3 FLOPs an element for quantising queries."""

from tilesieve.cost import Cost


def hand(*, live: int, heads: int, columns: int, scanned: int, quantised: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return scanned * heads * (1 + quantised) + 3 * quantised * live * heads * columns


def cost(*, rows: int, live: int | None = None, heads: int, kv_heads: int, width: int, columns: int, length: int,
         scanned: int, keys: int, entries: int, sequences: int = 1, itemsize: int = 2, cache_itemsize: int = 2,
         quantised: int = 0, basis: int = 0) -> Cost:  # fmt: skip
    """rows R, live = rows that see a key, heads H, kv_heads G, width D, columns C, length L.

    scanned    visible (row, position) pairs; keys: distinct (page, offset) among them
    entries    page table entries looked at; sequences: lengths looked at
    quantised, basis: 1 where the format has scales, the projection a basis

    The distinct keys are read once, however many rows see them. What our CPU form moves beyond
    that is a fp32 copy of them.
    """
    live = rows if live is None else live
    query = live * heads * (width if basis else columns) * itemsize
    projection = 4 * basis * kv_heads * width * columns + 8 * (1 - basis) * columns
    index = 8 * rows + 4 * (entries + sequences)
    cache = keys * kv_heads * (columns * cache_itemsize + 4 * quantised)
    return Cost(
        flops=2 * heads * columns * (basis * live * width + scanned)
        + hand(live=live, heads=heads, columns=columns, scanned=scanned, quantised=quantised),
        bytes_min=query + projection + index + cache + 4 * rows * heads * length,
    )
