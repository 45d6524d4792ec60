"""What sparse_gqa must cost. Counted: the two matrix products. Not counted: softmax and scale."""

from tilesieve.cost import Cost


def cost(*, rows: int, heads: int, kv_heads: int, width: int, picks: int, visited: int, distinct: int,
         lists: int = 1, value_width: int | None = None, itemsize: int = 2, q_itemsize: int = 2,
         slot_itemsize: int = 8, sink: int = 0) -> Cost:  # fmt: skip
    """rows R of H heads over kv heads G; K picks in each of a row's lists; keys of width D, values Dv.

    visited   (query head, valid listed slot) pairs: H x K for one full row
    distinct  (kv head, slot) pairs that some row lists: G x K for one full row
    """
    columns = width + (width if value_width is None else value_width)
    index = rows * lists * (picks * slot_itemsize + 4)
    outputs = 4 * rows * heads * (columns - width + 1)
    return Cost(
        flops=2 * visited * columns,
        bytes_min=distinct * columns * itemsize
        + rows * heads * width * q_itemsize
        + index
        + 4 * heads * sink
        + outputs,
    )
