"""What a MoE layer costs at the shape that is usually shown: T 8192, D 7168, 8 experts, 4 picks, bf16.

Three conventions side by side: the minimum (each input read once, each output written once), what an
implementation moves, and what it moves with its padding. MiB and GiB are binary, GB decimal.
"""

import pytest

from tilesieve.ops.catalogue import cost
from tilesieve.ops.experts.cost import gate_up_apart

T, D, E, K, B = 8192, 7168, 8, 4, 2
MIB = 1 << 20
ROWS = T * K


def test_permute_in_three_conventions():
    index = 4 * (ROWS + 1)
    one = cost("permute")(tokens=T, width=D, rows=ROWS)
    assert one.flops == 0
    assert one.bytes_min - index == (K + 1) * T * D * B == 560 * MIB
    assert one.bytes_moved - index == 2 * ROWS * D * B == 896 * MIB  # every row is read and written
    assert one.bytes_padded == one.bytes_moved
    # At 128 rows a group, each of the 8 groups one row in its last block: 8 * 127 rows of zeros.
    listed = ROWS + E * 127
    padded = cost("permute")(tokens=T, width=D, rows=ROWS, listed=listed)
    assert padded.bytes_padded - padded.bytes_moved == E * 127 * D * B
    assert padded.bytes_min - one.bytes_min == 4 * E * 127  # their entries of `token`, no rows


def test_the_permuted_buffer():
    assert ROWS * D * B == 448 * MIB


def test_there_and_back():
    """1.75 GiB is 4 Tkdb, both passes reading and writing Tk rows; the least is (k+1) Tdb each, 62.5 % of it."""
    there = cost("permute")(tokens=T, width=D, rows=ROWS)
    back = cost("unpermute")(tokens=T, picks=K, width=D, rows=ROWS, weighted=1)
    indices = 4 * (ROWS + 1) + 4 * (ROWS + 1) + 4 * ROWS  # token; row; weight
    least = there.bytes_min + back.bytes_min - indices
    assert least == 2 * (K + 1) * T * D * B == 1_174_405_120
    seen = 2 * (there.bytes_moved - 4 * (ROWS + 1))
    assert seen == 4 * ROWS * D * B == 1_879_048_192 == 1.75 * 2**30
    assert least / seen == 0.625
    # Not without FLOPs: half of a router's 2 TdE.
    assert back.flops == 2 * ROWS * D == 469_762_048
    assert back.flops * 2 == 2 * T * D * E


def test_the_indices_are_small():
    """group_rows reads and writes integers only: a thousandth of what permute moves."""
    one = cost("group_rows")(tokens=T, picks=K, experts=E, rows=ROWS, tiles=ROWS // 64 + E)
    assert one.flops == 0
    assert one.bytes_min == 4 * (T + ROWS + 2 * ROWS + E + 1 + 3 * (ROWS // 64 + E) + ROWS)
    assert one.bytes_min * 1000 < 560 * MIB * 2


def expert_cost(experts, picks, **more):
    """T 8192, D 7168, I 2048, every token's row read and every expert hit."""
    rows = T * picks
    return cost("experts")(tokens=T, width=D, inner=2048, experts=experts, rows=rows, hit=experts, **more)


def hand_of_experts(rows):
    """The silu and the product between the matrix products: 4 per element, a thousandth of a part of them."""
    return 4 * rows * 2048


def test_experts_in_a_convention_of_its_own():
    """2.11 GB and 1365 FLOP a byte count x twice (gate and up apart) and y once, all matrices, nothing between."""
    one = expert_cost(E, K)
    products = one.flops - hand_of_experts(ROWS)
    assert products == 6 * ROWS * D * 2048 == 2_886_218_022_912  # 2.89 TFLOP
    seen = gate_up_apart(width=D, inner=2048, experts=E, rows=ROWS)
    assert seen == B * (3 * E * D * 2048 + 3 * ROWS * D) == 2_113_929_216  # 2.11 GB
    assert products / seen == 1365 + 1 / 3
    assert products / seen == 2048 * ROWS / (E * 2048 + ROWS)  # of the shape alone: D is not in it


def test_the_same_with_256_experts():
    """V3.2's own count of experts and picks at the same T: 256 tokens an expert, and another verdict."""
    one = expert_cost(256, 8)
    products = one.flops - hand_of_experts(2 * ROWS)
    seen = gate_up_apart(width=D, inner=2048, experts=256, rows=2 * ROWS)
    assert products == 5_772_436_045_824 and seen == 25_367_150_592
    assert round(products / seen, 1) == 227.6
    # Against the least, each is a different number; neither is what a form of two passes moves.
    assert round(products / one.bytes_min, 1) == 244.5
    assert round(products / one.bytes_moved, 1) == 231.2


def test_experts_in_three_conventions():
    one, index = expert_cost(E, K), 4 * (ROWS + E + 1)
    matrices, row = 3 * E * D * 2048 * B, D * B
    assert one.bytes_min == index + matrices + (T + ROWS) * row == 1_291_976_740
    assert one.bytes_moved == index + matrices + 2 * ROWS * row + 2 * ROWS * 2048 * B
    assert one.bytes_padded == one.bytes_moved
    assert one.bytes_min < one.bytes_moved < gate_up_apart(width=D, inner=2048, experts=E, rows=ROWS)
    # At 128 rows a group, each of the 8 groups one row in its last block.
    padded = expert_cost(E, K, listed=ROWS + E * 127)
    assert padded.bytes_min - one.bytes_min == 4 * E * 127
    assert padded.bytes_padded - padded.bytes_moved == E * 127 * (row + 2 * 2048 * B)
    assert padded.flops == one.flops
    # Only the matrices of experts hit move: 3 of them, 32 tokens.
    few = cost("experts")(tokens=8, width=D, inner=2048, experts=256, rows=32, hit=3)
    assert few.bytes_min == 4 * (32 + 257) + 3 * 3 * D * 2048 * B + (8 + 32) * row


def test_grouped_products_in_three_conventions():
    """Gate and up as one product that reads x once; their result, twice 2048 wide, is written."""
    one = cost("grouped_gemm")(depth=D, width=4096, experts=E, rows=ROWS, hit=E)
    assert one.flops == 4 * ROWS * D * 2048
    assert one.bytes_min == one.bytes_moved == 4 * (ROWS + E + 1) + B * (E * D * 4096 + ROWS * (D + 4096))
    padded = cost("grouped_gemm")(depth=D, width=4096, experts=E, rows=ROWS, hit=E, listed=ROWS + E * 127)
    assert padded.bytes_padded - padded.bytes_moved == E * 127 * 4096 * B
    both = one + cost("grouped_gemm")(depth=2048, width=D, experts=E, rows=ROWS, hit=E)
    assert both.flops == 6 * ROWS * D * 2048


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [(1, 1.0), (4, 3.99), (12, 11.9), (16, 15.8), (32, 31.4), (128, 118), (512, 384), (1024, 614), (4096, 1117)],
)
def test_one_expert_at_few_tokens(tokens, seen):
    """Yet another convention, with four rows of D per token: M / (1 + 4 M / (3 d_e)). Ours counts two, so it is
    above; within a tenth where tokens are few and the matrices are nearly all."""
    assert tokens / (1 + 4 * tokens / (3 * 2048)) == pytest.approx(seen, rel=5e-3)
    one = cost("experts")(tokens=tokens, width=D, inner=2048, experts=1, rows=tokens, hit=1)
    products = one.flops - hand_of_experts(tokens)
    assert seen < products / one.bytes_min + 0.01
    if tokens <= 128:
        assert products / one.bytes_min == pytest.approx(seen, rel=0.1)
