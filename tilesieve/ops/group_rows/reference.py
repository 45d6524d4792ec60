"""group_rows, one pick at a time. T tokens, K picks, E experts, N rows, n tiles."""

import torch
from torch import Tensor

from tilesieve.ops.group_rows.layouts import rows_bound, tiles_bound


def group_rows(index_TK: Tensor, count_T: Tensor, expert_map: Tensor | None, experts: int, tile: int, align: int,
               reserve: str, capacity: int | None) -> tuple[Tensor, ...]:  # fmt: skip
    tokens, picks = index_TK.shape
    local = list(range(experts)) if expert_map is None else expert_map.tolist()
    groups: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    for t, (index_K, count) in enumerate(zip(index_TK.tolist(), count_T.tolist(), strict=True)):
        for c, expert in enumerate(index_K[: max(count, 0)]):
            if 0 <= expert < len(local) and 0 <= local[expert] < experts:
                groups[local[expert]].append((t, c))

    rows = rows_bound(tokens * picks, experts, align=align, reserve=reserve, capacity=capacity)
    token_N, choice_N = [-1] * rows, [-1] * rows
    row_TK = [[-1] * picks for _ in range(tokens)]
    offsets_E1, tiles_n3 = [0], []
    for expert, group in enumerate(groups):
        start = offsets_E1[-1]
        group = group if capacity is None else group[:capacity]
        for row, (t, c) in enumerate(group, start):
            token_N[row], choice_N[row], row_TK[t][c] = t, c, row
        for first in range(0, len(group), tile):
            tiles_n3.append([expert, start + first, min(tile, len(group) - first)])
        needed = len(group) + (reserve == "count_plus_one")
        offsets_E1.append(start + (-(-needed // align) * align if capacity is None else capacity))
    unused = tiles_bound(tokens * picks, experts, tile, capacity) - len(tiles_n3)
    tiles_n3 += [[-1, -1, -1]] * unused

    def ints(values: object, *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=index_TK.device).view(shape)

    return (
        *(ints(token_N, -1), ints(choice_N, -1), ints(offsets_E1, -1)),
        *(ints(tiles_n3, len(tiles_n3), 3), ints(row_TK, tokens, picks)),
    )
