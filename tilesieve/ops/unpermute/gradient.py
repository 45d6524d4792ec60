"""The backward of unpermute. Row of pick (t,c): weight[t,c] * grad[t]; weight[t,c]: row . grad[t]."""

from typing import Any

import torch
from torch import Tensor

from tilesieve.ops.unpermute.reference import known, wide


def setup(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Tensor) -> None:
    rows, offsets, row, weight, _ = inputs
    # Rows themselves are needed for the gradient of the weights only.
    ctx.weighted = weight is not None and weight.requires_grad
    ctx.save_for_backward(offsets, row, weight, rows if ctx.weighted else None)
    ctx.shape, ctx.dtype, ctx.wide = rows.shape, rows.dtype, wide(rows)


def backward(ctx: Any, grad_TD: Tensor) -> tuple[Tensor | None, ...]:
    offsets, row_TK, weight_TK, rows_ND = ctx.saved_tensors
    (n, _), (tokens, picks) = ctx.shape, row_TK.shape
    known_TK = known(n, offsets, row_TK)
    grad_TD = grad_TD.to(ctx.wide)
    grad_rows_ND, grad_weight_TK = None, None
    if ctx.needs_input_grad[0]:
        # The pick of each row, by a scatter of integers; then every row gathers: no float is added twice.
        each_P = torch.arange(tokens * picks, device=row_TK.device)
        place_P = torch.where(known_TK, row_TK, n).flatten().long()
        pick_N = each_P.new_full((n + 1,), -1).scatter_reduce(0, place_P, each_P, "amax")[:-1]
        if tokens * picks:
            here_N, pick_N = pick_N >= 0, pick_N.clamp(min=0)
            part_ND = grad_TD.index_select(0, pick_N.div(picks, rounding_mode="floor"))
            if weight_TK is not None:
                part_ND = weight_TK.flatten().index_select(0, pick_N)[:, None].to(ctx.wide) * part_ND
            grad_rows_ND = torch.where(here_N[:, None], part_ND, 0.0).to(ctx.dtype)
        else:
            grad_rows_ND = grad_TD.new_zeros(ctx.shape, dtype=ctx.dtype)
    if rows_ND is not None and ctx.needs_input_grad[3]:
        columns = []
        for c in range(picks if n else 0):
            row_TD = rows_ND.index_select(0, torch.where(known_TK[:, c], row_TK[:, c], 0))
            dot_T = (row_TD.double() * grad_TD.double()).sum(-1)
            columns.append(torch.where(known_TK[:, c], dot_T, 0.0))
        grad_weight_TK = torch.stack(columns, 1) if columns else grad_TD.new_zeros(tokens, picks)
        grad_weight_TK = grad_weight_TK.to(weight_TK.dtype)
    return grad_rows_ND, None, None, grad_weight_TK, None
