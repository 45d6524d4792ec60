"""What a MoE layer costs at the shape that is usually shown: T 8192, D 7168, 8 experts, 4 picks, bf16.

Three conventions side by side: the minimum (each input read once, each output written once), what an
implementation moves, and what it moves with its padding. MiB and GiB are binary, GB decimal.
"""

from tilesieve.ops.catalogue import cost

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
