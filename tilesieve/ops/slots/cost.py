"""What slots must cost. Terms: integer addresses only, no FLOPs; the bytes are exact."""

from tilesieve.cost import Cost


def cost(*, rows: int, picks: int, sets: int = 1, listed: int | None = None, pages: int | None = None,
         sequences: int | None = None) -> Cost:  # fmt: skip
    """rows R, picks K, sets G per row; listed = entries within their row's count, in rows that see
    something; pages = distinct table entries they look up; sequences = distinct sequences of those rows."""
    listed = rows * sets * picks if listed is None else listed
    pages = listed if pages is None else pages
    sequences = rows if sequences is None else sequences
    read = 4 * (2 * rows + rows * sets + sequences + listed + pages)  # seq and position, count, ...
    return Cost(bytes_min=read + 8 * rows * sets * picks)
