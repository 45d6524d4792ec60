"""What grouped_gemm must cost. Terms: 2 per multiply-add; with scales, a product of two scales per row, block
of M and block of K, and a multiply and an add per element and block of K."""

from tilesieve.cost import Cost


def hand(*, depth: int, width: int, rows: int, scaled: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    kb, mb = -(-depth // 128), -(-width // 128)
    return scaled * rows * kb * (2 * width + mb)


def cost(*, depth: int, width: int, experts: int, rows: int, hit: int, listed: int | None = None, itemsize: int = 2,
         out_itemsize: int = 2, scaled: int = 0) -> Cost:  # fmt: skip
    """depth K, width M, experts E; rows = rows with a token, hit = experts that have one; listed = all rows,
    padding too. Only the matrices of experts that are hit move; padding rows are written as zeros."""
    listed = rows if listed is None else listed
    kb, mb = -(-depth // 128), -(-width // 128)
    index = 4 * (listed + experts + 1)
    matrices = hit * (depth * width * itemsize + scaled * 4 * kb * mb)
    read = rows * (depth * itemsize + scaled * 4 * kb)
    least = index + matrices + read + rows * width * out_itemsize
    return Cost(
        flops=2 * rows * depth * width + hand(depth=depth, width=width, rows=rows, scaled=scaled),
        bytes_min=least,
        bytes_padded=least + (listed - rows) * width * out_itemsize,
    )
