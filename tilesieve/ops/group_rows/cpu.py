"""group_rows, all picks at once: a stable sort by expert, then every row looks up its pick."""

import torch
from torch import Tensor

from tilesieve.ops.group_rows.layouts import Layout, place, source_rows, tile_table


def group_rows(index_TK: Tensor, count_T: Tensor, expert_map: Tensor | None, experts: int, tile: int, align: int,
               reserve: str, capacity: int | None, *, out: tuple[Tensor, ...]) -> None:  # fmt: skip
    token_N, choice_N, offsets_E1, tiles_n3, row_TK = out
    tokens, picks = index_TK.shape
    listed_TK = torch.arange(picks, device=index_TK.device) < count_T[:, None]
    expert_TK = index_TK
    if expert_map is not None:
        known_TK = (index_TK >= 0) & (index_TK < len(expert_map))
        # One entry more, -1, so that an empty map can be looked into too.
        local = torch.cat([expert_map, expert_map.new_full((1,), -1)])
        expert_TK = local[torch.where(known_TK, index_TK, len(expert_map)).long()]
    listed_TK &= (expert_TK >= 0) & (expert_TK < experts)
    # int16 where it fits: the sort is a radix sort there.
    key_P = torch.where(listed_TK, expert_TK, experts).flatten().to(torch.int16 if experts < 1 << 15 else torch.int32)
    sorted_P, pick_P = key_P.sort(stable=True)
    each_E1 = torch.arange(experts + 1, device=index_TK.device, dtype=key_P.dtype)
    begin_E1 = torch.searchsorted(sorted_P, each_E1)
    ragged = Layout(begin_E1, begin_E1.diff(), tokens * picks)
    layout = place(ragged.count, tokens * picks, align=align, reserve=reserve, capacity=capacity)
    from_N = source_rows(ragged, layout)
    pick_N = torch.cat([pick_P, pick_P.new_full((1,), -1)])[from_N]
    here_N = pick_N >= 0
    token_N.copy_(pick_N.div(max(picks, 1), rounding_mode="floor"))
    choice_N.copy_(torch.where(here_N, pick_N - token_N.long() * picks, -1))
    offsets_E1.copy_(layout.offsets)
    tiles_n3.copy_(tile_table(layout, tile, len(tiles_n3)))
    # Picks are distinct, only the spare last place is written more than once.
    row_P = torch.full((tokens * picks + 1,), -1, dtype=torch.int32, device=index_TK.device)
    here_row_N = torch.arange(len(pick_N), dtype=torch.int32, device=index_TK.device)
    row_P.scatter_(0, torch.where(here_N, pick_N, tokens * picks), here_row_N)
    row_TK.copy_(row_P[:-1].view(tokens, picks))
