"""What permute must cost: no FLOPs; every token read once, every row written once."""

from tilesieve.cost import Cost


def cost(*, tokens: int, width: int, rows: int, listed: int | None = None, itemsize: int = 2) -> Cost:
    """tokens = distinct tokens that have a row, rows = rows of tokens, width D; listed = all rows, padding
    too. The minimum reads a token once, our forms once per row; padding rows are written as zeros."""
    listed = rows if listed is None else listed
    index = 4 * (listed + 1)  # token of each row, last offset
    row = width * itemsize
    return Cost(
        bytes_min=(tokens + rows) * row + index,
        bytes_moved=2 * rows * row + index,
        bytes_padded=(rows + listed) * row + index,
    )
