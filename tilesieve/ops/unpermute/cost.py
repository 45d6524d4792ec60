"""What unpermute must cost. Terms: an add per row element, and a multiply where there are weights."""

from tilesieve.cost import Cost


def hand(*, width: int, rows: int, weighted: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return (1 + weighted) * rows * width


def cost(*, tokens: int, picks: int, width: int, rows: int, weighted: int = 0, itemsize: int = 2,
         out_itemsize: int = 2, weight_itemsize: int = 4) -> Cost:  # fmt: skip
    """tokens T, picks K, width D; rows = picks that have a row."""
    index = 4 * (tokens * picks + 1) + weighted * weight_itemsize * tokens * picks
    return Cost(
        flops=hand(width=width, rows=rows, weighted=weighted),
        bytes_min=index + rows * width * itemsize + tokens * width * out_itemsize,
    )
