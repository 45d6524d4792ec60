"""What sparse_gqa_prefill must cost. Counted: the two matrix products over the positions that the masks
leave. Not counted: softmax, scale, and what a form that multiplies masked positions does besides."""

from tilesieve.cost import Cost


def cost(*, rows: int, heads: int, kv_heads: int, width: int, picks: int, visited: int, distinct: int,
         lists: int = 1, entries: int = 0, sequences: int = 1, value_width: int | None = None, itemsize: int = 2,
         q_itemsize: int = 2, sink: int = 0) -> Cost:  # fmt: skip
    """rows R of H heads over kv heads G; K picks in each of a row's lists; keys of width D, values Dv.

    visited   (query head, selected position) pairs, duplicates once: R x H x K where all rows are full
    distinct  (kv head, slot) pairs that some row selects
    entries   page table entries read; sequences = entries of Pages.length
    """
    columns = width + (width if value_width is None else value_width)
    index = 4 * (rows * lists * (picks + 1) + entries + sequences + 2 * rows)
    outputs = 4 * rows * heads * (columns - width + 1)
    return Cost(
        flops=2 * visited * columns,
        bytes_min=distinct * columns * itemsize
        + rows * heads * width * q_itemsize
        + index
        + 4 * heads * sink
        + outputs,
    )
