"""What topk must cost. Terms: mass 4 FLOPs an element (subtract the maximum, exponential, divide, add
to the heads' total), sum one addition for each head after a set's first; comparisons none. There are
no matrix products."""

from tilesieve.cost import Cost

# The CPU form's bounds (cpu.py, keys.py): bytes for the sets of one pass, and for a buffer that part of
# their scores goes through; one set where that is more.
SCRATCH = 16 << 20
BUFFER = 4 << 20


def set_bytes(*, width: int) -> int:
    """Scratch of one set: eight words a column for keys and what orders them."""
    return 32 * max(width, 64)


def hand(*, sets: int, heads: int, scanned: int, mass: int = 0, summed: int = 0, **_: int) -> int:
    """FLOPs that are no matrix product."""
    return 4 * mass * scanned + summed * (scanned - scanned * sets // heads if heads else 0)


def cost(*, rows: int, picks: int, scanned: int, width: int, heads: int = 1, sets: int = 1, mass: int = 0,
         summed: int = 0, starts: int = 0, ends: int = 0, paged: int = 0, sequences: int | None = None,
         pages: int | None = None) -> Cost:  # fmt: skip
    """rows R, picks K, sets G per row, heads S, width L; scanned = scores within the rows' ranges, all
    heads; mass, summed = 1 where sets of several heads are reduced that way; starts, ends = 1 where
    given; paged = 1 with Slots too: pages = distinct table entries behind the picks, sequences =
    distinct sequences of the rows."""
    pages = rows * sets * picks if pages is None else pages
    sequences = rows if sequences is None else sequences
    read = 4 * (scanned + rows * (starts + ends) + paged * (2 * rows + sequences + pages))
    written = rows * sets * (4 * picks + 4 + paged * 8 * picks)
    one = set_bytes(width=width)
    # Masked scores and their softmax, or the signs of the scores.
    per = heads // sets if sets else 0
    buffers = (2 if mass else 1) * max(BUFFER, 4 * per * max(width, 64))
    return Cost(
        flops=hand(sets=sets, heads=heads, scanned=scanned, mass=mass, summed=summed),
        bytes_min=read + written,
        workspace=min(rows * sets, max(1, SCRATCH // one)) * one + buffers,
    )
