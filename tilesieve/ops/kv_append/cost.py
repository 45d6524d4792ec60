"""What kv_append must cost. Terms: RMSNorm 4 FLOPs an element, a rotation 3 an element."""

from tilesieve.cost import Cost


def hand(*, rows: int, heads: int, width: int, norm: int = 0, rotary: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return rows * heads * (4 * width * norm + 3 * rotary)


def cost(*, rows: int, heads: int, width: int, value_width: int | None = None, listed: int | None = None,
         itemsize: int = 2, cache_itemsize: int = 2, slot_itemsize: int = 8, norm: int = 0,
         rotary: int = 0) -> Cost:  # fmt: skip
    """rows = rows written, listed = rows given (skipped ones cost their slot), heads G, width D."""
    listed = rows if listed is None else listed
    columns = width + (width if value_width is None else value_width)
    angles = rows * rotary * 4  # cos and sin, fp32, half of `rotary` each
    return Cost(
        flops=hand(rows=rows, heads=heads, width=width, norm=norm, rotary=rotary),
        bytes_min=listed * slot_itemsize
        + rows * heads * columns * (itemsize + cache_itemsize)
        + norm * width * 4
        + angles,
    )
