"""What merge must cost. Terms: a multiply and an add per element of a part; exponentials are not counted."""

from tilesieve.cost import Cost


def hand(*, live: int, heads: int, value_width: int, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return 2 * live * heads * value_width


def cost(*, parts: int, rows: int, heads: int, value_width: int, live: int | None = None, itemsize: int = 4,
         out_itemsize: int = 4, lengths: int = 0, sink: int = 0) -> Cost:  # fmt: skip
    """live = (part, row) pairs that are read; all of them by default."""
    live = parts * rows if live is None else live
    read = live * heads * (value_width * itemsize + 4) + lengths * parts * rows * 4 + sink * heads * 4
    return Cost(
        flops=hand(live=live, heads=heads, value_width=value_width),
        bytes_min=read + rows * heads * (value_width * out_itemsize + 4),
        workspace=rows * heads * 4 * (value_width + 2 * parts + 3),
    )
