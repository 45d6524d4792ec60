"""slots, many entries at once."""

from torch import Tensor

from tilesieve.ops.slots.reference import translate


def slots(index_RGK: Tensor, count_RG: Tensor, table_BM: Tensor, length_B: Tensor, page_size: int, seq_R: Tensor,
          position_R: Tensor, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    translate(index_RGK, count_RG, table_BM, length_B, page_size, seq_R, position_R, out[0])
