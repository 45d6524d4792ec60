"""What the dense parts of a transformer must cost: exact integers, per call.

rows R = tokens in the batch. itemsize: bytes of an activation's element; weight_itemsize: of a weight's. Every input
is read once and every output written once; no product shares a read with its neighbour.
"""

from tilesieve.cost import Cost


def linear(rows: int, inputs: int, outputs: int, *, bias: bool = False, itemsize: int = 2, weight_itemsize: int = 2,
           out_itemsize: int | None = None) -> Cost:  # fmt: skip
    """y [R,outputs] = x [R,inputs] @ weight: 2 FLOPs a multiply-add, 1 for each bias added."""
    out_itemsize = itemsize if out_itemsize is None else out_itemsize
    weights = inputs * outputs + bias * outputs
    return Cost(
        flops=2 * rows * inputs * outputs + bias * rows * outputs,
        bytes_min=weights * weight_itemsize + rows * inputs * itemsize + rows * outputs * out_itemsize,
    )


def norm(rows: int, width: int, *, weights: int | None = None, itemsize: int = 2, weight_itemsize: int = 2) -> Cost:
    """RMSNorm: 4 FLOPs an element (square, add, scale, weigh). `weights` elements are read, `width` by default."""
    weights = width if weights is None else weights
    return Cost(flops=4 * rows * width, bytes_min=2 * rows * width * itemsize + weights * weight_itemsize)


def rope(rows: int, heads: int, width: int, *, itemsize: int = 2) -> Cost:
    """Rotation of all dimensions: 3 FLOPs an element; cos and sin fp32, half of `width` each, once a row."""
    elements = rows * heads * width
    return Cost(flops=3 * elements, bytes_min=2 * elements * itemsize + rows * width * 4)


def swiglu(rows: int, width: int, *, itemsize: int = 2) -> Cost:
    """silu(gate) * up: 5 FLOPs an element (exp, add, divide, two multiplications)."""
    return Cost(flops=5 * rows * width, bytes_min=3 * rows * width * itemsize)


def residual(rows: int, width: int, *, itemsize: int = 2) -> Cost:
    """x + y: 1 FLOP an element."""
    return Cost(flops=rows * width, bytes_min=3 * rows * width * itemsize)


def embedding(rows: int, width: int, *, itemsize: int = 2, weight_itemsize: int = 2, id_itemsize: int = 8) -> Cost:
    """One row of the table per token id; no arithmetic. Equal ids are read once each."""
    return Cost(bytes_min=rows * (width * (weight_itemsize + itemsize) + id_itemsize))


def head(rows: int, hidden: int, vocab: int, *, itemsize: int = 2, weight_itemsize: int = 2) -> Cost:
    """Logits [R,vocab] in the activations' dtype. A tied head reads the embedding's whole table."""
    return linear(rows, hidden, vocab, itemsize=itemsize, weight_itemsize=weight_itemsize)
