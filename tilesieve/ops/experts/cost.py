"""What experts must cost. Terms: those of swiglu_mlp for each row, and a multiply by the router weight per
element of where it is applied.

Three conventions of bytes, and one that others print:
bytes_min     a token's row of x once however many experts it has, matrices of the experts hit, each row of the
              result; nothing between the two products
bytes_moved   a form of two passes: x once per row, and what is between the products written and read
bytes_padded  the same with padding rows: theirs are written as zeros and read again by what follows
`gate_up_apart` is x read twice per row (by gate and by up) and y written, nothing between, all experts' matrices.
"""

from tilesieve.cost import Cost


def _blocks(size: int) -> int:
    return -(-size // 128)


def hand(*, width: int, inner: int, rows: int, scaled: int = 0, weighted: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    promotion = _blocks(width) * (2 * 2 * inner + _blocks(2 * inner)) + _blocks(inner) * (2 * width + _blocks(width))
    return rows * (4 * inner + weighted + scaled * (promotion + inner + _blocks(inner)))


def gate_up_apart(*, width: int, inner: int, experts: int, rows: int, itemsize: int = 2) -> int:
    """Bytes in a convention of its own, neither the least nor ours: see above. No indices, no scales."""
    return itemsize * (3 * experts * width * inner + 3 * rows * width)


def cost(*, tokens: int, width: int, inner: int, experts: int, rows: int, hit: int, listed: int | None = None,
         itemsize: int = 2, out_itemsize: int = 2, scaled: int = 0, weighted: int = 0) -> Cost:  # fmt: skip
    """tokens = distinct tokens that have a row, width D, inner I, experts E, rows = rows with a token, hit =
    experts that have one; listed = all rows, padding too; weighted = elements of a row that the router
    weight multiplies: 0, I (before down) or D (down)."""
    listed = rows if listed is None else listed
    index = 4 * (listed + experts + 1) + (4 * (listed + rows) if weighted else 0)
    matrices = hit * 3 * width * inner * itemsize
    matrices += scaled * hit * 4 * (_blocks(2 * inner) * _blocks(width) + _blocks(width) * _blocks(inner))
    x_row = width * itemsize + scaled * 4 * _blocks(width)
    between = inner * itemsize + scaled * 4 * _blocks(inner)
    least = index + matrices + tokens * x_row + rows * width * out_itemsize
    moved = least + (rows - tokens) * x_row + 2 * rows * between
    return Cost(
        flops=6 * rows * width * inner + hand(width=width, inner=inner, rows=rows, scaled=scaled, weighted=weighted),
        bytes_min=least,
        bytes_moved=moved,
        bytes_padded=moved + (listed - rows) * (2 * between + width * out_itemsize),
        workspace=listed * between,
        launches=2,
    )
