"""merge, one row and head at a time in fp64. N parts, R rows, H heads, E value width."""

import math

import torch
from torch import Tensor


def merge(outs: list[Tensor], lses: list[Tensor], lengths_NR: Tensor | None, sink_H: Tensor | None,
          dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # fmt: skip
    rows, heads, _ = outs[0].shape
    out_RHE = torch.zeros(outs[0].shape, dtype=dtype, device=outs[0].device)
    lse_RH = torch.full((rows, heads), -torch.inf, device=outs[0].device)
    for r in range(rows):
        for h in range(heads):
            live = [
                (float(lses[n][r, h]), outs[n][r, h].double())
                for n in range(len(outs))
                if (lengths_NR is None or int(lengths_NR[n, r]) > 0) and float(lses[n][r, h]) != -math.inf
            ]
            if not live:
                continue
            lse = torch.tensor([part for part, _ in live], dtype=torch.float64, device=lse_RH.device)
            whole = torch.logsumexp(lse, 0)
            below = whole if sink_H is None else torch.logaddexp(whole, sink_H[h].double())
            total_E = sum(float((part - below).exp()) * out_E for part, out_E in live)
            out_RHE[r, h] = total_E.to(dtype)  # type: ignore[union-attr]
            lse_RH[r, h] = whole.float()
    return out_RHE, lse_RH
