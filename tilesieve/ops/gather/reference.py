"""gather, one slot at a time. R rows, A lists of a row (one, or one per kv head), K slots listed, G kv
heads, C columns, p pages of P tokens."""

from torch import Tensor


def gather(key_pPGD: Tensor, value_pPGE: Tensor, slot_RAK: Tensor, count_RA: Tensor) -> tuple[Tensor, Tensor]:
    pages, page_size, kv_heads = key_pPGD.shape[:3]
    rows, lists, picks = slot_RAK.shape
    packed = []
    for pool_pPGC in (key_pPGD, value_pPGE):
        packed_RGKC = pool_pPGC.new_zeros(rows, kv_heads, picks, pool_pPGC.shape[3])
        for r in range(rows):
            for h in range(kv_heads):
                a = h if lists > 1 else 0
                for k, slot in enumerate(slot_RAK[r, a, : max(0, int(count_RA[r, a]))].tolist()):
                    if 0 <= slot < pages * page_size:
                        packed_RGKC[r, h, k] = pool_pPGC[slot // page_size, slot % page_size, h]
        packed.append(packed_RGKC)
    return packed[0], packed[1]
