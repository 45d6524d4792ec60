"""What gqa_decode must cost. Counted: the two matrix products. Not counted: softmax and scale."""

from tilesieve.cost import Cost


def cost(*, rows: int, heads: int, kv_heads: int, width: int, visited: int, distinct: int, entries: int = 0,
         sequences: int = 1, value_width: int | None = None, itemsize: int = 2, q_itemsize: int = 2,
         sink: int = 0) -> Cost:  # fmt: skip
    """rows R of H heads over kv_heads G; keys of width D, values of width Dv (D by default).

    visited   (query head, visible position) pairs: H x context for one row
    distinct  (kv head, slot) pairs that some row sees: G x context for one sequence
    entries   page table entries read; sequences = entries of Pages.length
    """
    columns = width + (width if value_width is None else value_width)
    index = 4 * (entries + sequences + 2 * rows)
    outputs = 4 * rows * heads * (columns - width + 1)
    return Cost(
        flops=2 * visited * columns,
        bytes_min=distinct * columns * itemsize
        + rows * heads * width * q_itemsize
        + index
        + 4 * heads * sink
        + outputs,
    )
