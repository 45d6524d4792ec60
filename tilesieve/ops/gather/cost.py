"""What gather must cost: no FLOPs; every distinct row read once, every packed row written once."""

from tilesieve.cost import Cost

SECTOR = 32  # bytes that a GPU's memory moves at least


def contiguous_bytes(*, layout: str, heads: int, width: int, itemsize: int, picked: int, runs: int,
                     lists: int = 1) -> int:  # fmt: skip
    """Bytes of one contiguous copy, in the mean over all copies (rounded down; 0 where nothing is copied).

    layout  "token": a slot's heads lie together. With one list for all heads a run of n slots is one
            copy of n * G * D numbers; with a list per head each slot is a copy of D
            "head": a head's slots lie together. A run of n slots is a copy of n * D for each head
            that reads it
    picked  slots copied, runs: contiguous_runs of them, both summed over rows and lists
    lists   per row: 1, or G
    """
    if layout not in ("token", "head"):
        raise ValueError(f"layout is {layout!r}; allowed: 'token', 'head'")
    if picked == 0:
        return 0
    row = width * itemsize
    if layout == "head":
        return row * picked // runs
    return row if lists > 1 else row * heads * picked // runs


def cost(*, rows: int, picks: int, heads: int, width: int, picked: int, distinct: int, lists: int = 1,
         value_width: int | None = None, itemsize: int = 2, slot_itemsize: int = 8, runs: int | None = None,
         layout: str = "token") -> Cost:  # fmt: skip
    """rows R, K picks in each of a row's lists (1, or one for each of the heads G), widths D and Dv.

    picked    valid entries, over all rows and lists
    distinct  (kv head, slot) pairs read: each is read once at least
    runs      contiguous_runs, over all rows and lists, where known: bytes_padded then counts whole
              sectors of 32 bytes at the ends of each contiguous copy; without it a copy is one slot
    """
    value_width = width if value_width is None else value_width
    columns = width + value_width
    index = rows * lists * (picks * slot_itemsize + 4)
    written = rows * heads * picks * columns * itemsize
    read = picked * (heads if lists == 1 else 1) * columns * itemsize
    padded = 0
    for part in (width, value_width):
        mean = contiguous_bytes(layout=layout, heads=heads, width=part, itemsize=itemsize, picked=picked,
                                runs=picked if runs is None else runs, lists=lists)  # fmt: skip
        copies = picked * (heads if lists == 1 else 1) * part * itemsize // mean if mean else 0
        padded += copies * -(-mean // SECTOR) * SECTOR
    moved = read + written + index
    return Cost(
        bytes_min=distinct * columns * itemsize + written + index,
        bytes_moved=moved,
        bytes_padded=max(moved, padded + written + index),
    )
