"""What combine must cost. Terms: a multiply and an add per row element, an add per shared element."""

from tilesieve.cost import Cost


def hand(*, tokens: int, width: int, rows: int, shared: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return 2 * rows * width + shared * tokens * width


def cost(*, tokens: int, picks: int, width: int, experts: int, rows: int, listed: int | None = None,
         itemsize: int = 2, out_itemsize: int = 2, shared: int = 0) -> Cost:  # fmt: skip
    """tokens T, picks K, width D; rows = rows that belong to a token; listed = rows in `groups`."""
    listed = rows if listed is None else listed
    index = 4 * (2 * listed + experts + 1) + 4 * tokens * picks
    data = rows * width * itemsize + tokens * width * (out_itemsize + shared * itemsize)
    return Cost(
        flops=hand(tokens=tokens, width=width, rows=rows, shared=shared),
        bytes_min=index + data,
        workspace=8 * (tokens * picks + 1),
    )
