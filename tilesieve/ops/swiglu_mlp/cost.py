"""What swiglu_mlp must cost. Terms: 2 per multiply-add of the three products; per element between them an exp,
an add, a division and a multiply (a clamp is none). Of e4m3 besides, for each product: a product of two scales per
row, block of M and block of K, and a multiply and an add per element and block of K; to quantise again, a division
per element and one per scale."""

from tilesieve.cost import Cost


def _blocks(size: int) -> int:
    return -(-size // 128)


def hand(*, tokens: int, width: int, inner: int, scaled: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    promotion = _blocks(width) * (2 * 2 * inner + _blocks(2 * inner)) + _blocks(inner) * (2 * width + _blocks(width))
    return tokens * (4 * inner + scaled * (promotion + inner + _blocks(inner)))


def cost(*, tokens: int, width: int, inner: int, itemsize: int = 2, out_itemsize: int = 2, scaled: int = 0) -> Cost:
    """tokens T, width D, inner I. The minimum reads x and the weights once and writes the result; a form of two
    passes writes and reads what is between the products too."""
    read = 0
    if tokens:
        read = 3 * width * inner * itemsize + tokens * (width * itemsize + scaled * 4 * _blocks(width))
        read += scaled * 4 * (_blocks(2 * inner) * _blocks(width) + _blocks(width) * _blocks(inner))
    least = read + tokens * width * out_itemsize
    between = tokens * (inner * itemsize + scaled * 4 * _blocks(inner))
    return Cost(
        flops=6 * tokens * width * inner + hand(tokens=tokens, width=width, inner=inner, scaled=scaled),
        bytes_min=least,
        bytes_moved=least + 2 * between,
        workspace=between,
        launches=2,
    )
