"""What group_rows must cost. Terms: integers only, no FLOPs; the bytes are exact."""

from tilesieve.cost import Cost


def cost(*, tokens: int, picks: int, experts: int, rows: int, tiles: int, listed: int | None = None,
         mapped: int = 0) -> Cost:  # fmt: skip
    """tokens T, picks K, experts E; rows N and tiles n of the result; listed = picks within their
    token's count; mapped = distinct entries of expert_map looked up."""
    listed = tokens * picks if listed is None else listed
    read = tokens + listed + mapped
    written = 2 * rows + experts + 1 + 3 * tiles + tokens * picks
    # The sort keeps keys (int16 or int32), sorted keys and places (int64).
    return Cost(bytes_min=4 * (read + written), workspace=16 * tokens * picks)
