"""What score_append must cost. Terms: a matrix product for a basis, 1 FLOP an element for a mean,
3 an element for quantising (magnitude, division, rounding)."""

from tilesieve.cost import Cost


def hand(*, rows: int, heads: int, width: int, columns: int, quantised: int = 0, basis: int = 0, mean: int = 0,
         **_: int) -> int:  # fmt: skip
    """FLOPs that are no matrix product."""
    return rows * heads * (mean * (width if basis else columns) + 3 * quantised * columns)


def cost(*, rows: int, heads: int, width: int, columns: int, listed: int | None = None, itemsize: int = 2,
         cache_itemsize: int = 2, slot_itemsize: int = 8, quantised: int = 0, basis: int = 0,
         mean: int = 0) -> Cost:  # fmt: skip
    """rows = rows written, listed = rows given (skipped ones cost their slot), heads G, width D,
    columns C; quantised, basis, mean: 1 where the format has a scale, the projection a basis, a
    mean. Without a basis only the kept dimensions are read."""
    listed = rows if listed is None else listed
    read = width if basis else columns
    projection = 4 * basis * heads * width * columns + 8 * (1 - basis) * columns + 4 * mean * heads * read
    written = rows * heads * (columns * cache_itemsize + 4 * quantised)
    return Cost(
        flops=2 * basis * rows * heads * width * columns
        + hand(rows=rows, heads=heads, width=width, columns=columns, quantised=quantised, basis=basis, mean=mean),
        bytes_min=listed * slot_itemsize + rows * heads * read * itemsize + projection + written,
    )
