"""merge, all rows at once in fp32, one part after the other: elementwise, so that rows cannot meet."""

import torch
from torch import Tensor


def merge(outs: list[Tensor], lses: list[Tensor], lengths_NR: Tensor | None, sink_H: Tensor | None,
          dtype: torch.dtype, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    out_RHE, lse_RH = out
    lives = []
    for n, part_RH in enumerate(lses):
        live_RH = part_RH != -torch.inf
        lives.append(live_RH if lengths_NR is None else live_RH & (lengths_NR[n] > 0)[:, None])
    masked = [lse.masked_fill(~live, -torch.inf) for lse, live in zip(lses, lives, strict=True)]
    top_RH = masked[0]
    for part_RH in masked[1:]:
        top_RH = torch.maximum(top_RH, part_RH)
    # A row without parts would subtract -inf from -inf.
    base_RH = top_RH.masked_fill(top_RH == -torch.inf, 0.0)
    weights = [(part - base_RH).exp() for part in masked]
    total_RH = torch.zeros_like(base_RH)
    for weight_RH in weights:
        total_RH = total_RH + weight_RH
    below_RH = total_RH if sink_H is None else total_RH + (sink_H - base_RH).exp()
    sum_RHE = torch.zeros(out_RHE.shape, device=out_RHE.device)
    for part_RHE, weight_RH, live_RH in zip(outs, weights, lives, strict=True):
        # The share of one part alone is exactly 1, so merging a single part changes no number of it.
        share_RH = (weight_RH / below_RH)[..., None]
        sum_RHE += (part_RHE.float() * share_RH).masked_fill_(~live_RH[..., None], 0.0)
    out_RHE.copy_(sum_RHE)
    lse_RH.copy_(torch.where(top_RH.isinf(), top_RH, base_RH + total_RH.log()))
