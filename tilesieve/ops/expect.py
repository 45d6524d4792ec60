"""What op.py files say of their arguments: shapes by letter, dtypes, choices. All raise ValueError."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tilesieve.types import Pages, Rows

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int32, torch.int64)
INT32 = (torch.int32,)
FP32 = (torch.float32,)


def shape(dims: dict[str, int], name: str, tensor: Tensor, letters: str, dtypes: tuple[torch.dtype, ...]) -> None:
    """Check that `tensor` has one dimension per letter, the sizes that `dims` already knows, and
    one of `dtypes`; new letters enter `dims`. A digit stands for itself, `_` for anything."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} is {type(tensor).__name__}; allowed: a tensor [{letters.replace(' ', ', ')}]")
    axes = letters.split()
    if tensor.dim() != len(axes):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; allowed: [{', '.join(axes)}]")
    for axis, size in zip(axes, tensor.shape, strict=True):
        if axis == "_":
            continue
        known = int(axis) if axis.isdigit() else dims.setdefault(axis, size)
        if known != size:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; allowed: [{', '.join(axes)}] with {axis} = {known}"
            )
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}; allowed: {', '.join(str(d) for d in dtypes)}")


def noun(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {type(value).__name__}; allowed: {kind.__name__}")


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    options = tuple(allowed)
    if value not in options:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(repr(o) for o in options)}")


def at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; allowed: an integer >= {least}")


def same_device(reference: str, tensor: Tensor, **others: Tensor | None) -> None:
    for name, other in others.items():
        if other is not None and other.device != tensor.device:
            raise ValueError(f"{name} is on {other.device}; {reference} is on {tensor.device}")


def heads(dims: dict[str, int], q: Tensor, key: Tensor, value: Tensor) -> None:
    """q [R,H,D] against the token views of a paged cache; H is a multiple of G."""
    shape(dims, "q", q, "R H D", FLOATS)
    shape(dims, "cache.key", key, "pages P G D", (key.dtype,))
    shape(dims, "cache.value", value, "pages P G Dv", (value.dtype,))
    if dims["G"] < 1 or dims["H"] < 1 or dims["H"] % dims["G"]:
        raise ValueError(f"q has {dims['H']} heads; allowed: a multiple of the cache's {dims['G']} kv heads")
    same_device("q", q, **{"cache.key": key, "cache.value": value})


def paged(dims: dict[str, int], reference: str, tensor: Tensor, pages: Pages, rows: Rows) -> None:
    """Pages and Rows, on `tensor`'s device; a page has P tokens where `dims` knows P from a cache."""
    noun("pages", pages, Pages)
    noun("rows", rows, Rows)
    shape(dims, "pages.table", pages.table, "B max", INT32)
    shape(dims, "pages.length", pages.length, "B", INT32)
    at_least("pages.page_size", pages.page_size, 1)
    at_least("pages.max_length", pages.max_length, 0)
    if pages.page_size != dims.get("P", pages.page_size):
        raise ValueError(f"pages.page_size is {pages.page_size}; allowed: {dims['P']}, the cache's")
    shape(dims, "rows.seq", rows.seq, "R", INT32)
    shape(dims, "rows.position", rows.position, "R", INT32)
    same_device(reference, tensor, **{"pages.table": pages.table, "pages.length": pages.length,
                                      "rows.seq": rows.seq, "rows.position": rows.position})  # fmt: skip


def paged_contents(cache: Tensor, table: Tensor, length: Tensor, seq: Tensor, position: Tensor) -> None:
    """What `checked()` asks of pages and rows over a cache [pages,P,...]: every page and sequence in use exists."""
    pages, page_size = cache.shape[:2]
    most = table.shape[1] * page_size
    if bool((length < 0).any()) or bool((length > most).any()):
        raise ValueError(f"pages.length is {length.tolist()}; allowed: 0 to {most}, what pages.table holds")
    for b, n in enumerate(length.tolist()):
        used = table[b, : -(-n // page_size)]
        if bool((used < 0).any()) or bool((used >= pages).any()):
            raise ValueError(f"pages.table of sequence {b} is {used.tolist()}; the cache has pages 0 to {pages - 1}")
    lost = (position >= 0) & ((seq < 0) | (seq >= len(length)))
    if bool(lost.any()):
        raise ValueError(f"rows.seq names {seq[lost].tolist()}; allowed: 0 to {len(length) - 1}")


def matrices(dims: dict[str, int], name: str, value: Tensor | Sequence[Tensor], letters: str,
             dtypes: tuple[torch.dtype, ...], like: Tensor) -> list[Tensor]:  # fmt: skip
    """A matrix per expert, as operators pass them on: one stack [first letter, ..], or a list of so many.

    Each is on the device of `like`. An empty list is refused: it has no shape."""
    if isinstance(value, Tensor):
        shape(dims, name, value, letters, dtypes)
        same_device("x", like, **{name: value})
        return [value]
    first, rest = letters.split(maxsplit=1)
    if not isinstance(value, (list, tuple)) or not value:
        came = "an empty list" if isinstance(value, (list, tuple)) else type(value).__name__
        raise ValueError(f"{name} is {came}; allowed: a tensor [{', '.join(letters.split())}] or a list of tensors "
                         f"[{', '.join(rest.split())}]")  # fmt: skip
    if dims.setdefault(first, len(value)) != len(value):
        raise ValueError(f"{name} is a list of {len(value)}; allowed: {first} = {dims[first]} of them")
    for e, one in enumerate(value):
        shape(dims, f"{name}[{e}]", one, rest, dtypes)
        same_device("x", like, **{f"{name}[{e}]": one})
    return list(value)


def with_codes(coded: bool, **values: object) -> None:
    """Scales and what goes with them are given with e4m3 codes, all of them, and only with these."""
    for name, value in values.items():
        if (value is not None) != coded:
            raise ValueError(f"{name} is {'given' if value is not None else 'None'}, x {'is' if coded else 'is not'} "
                             "torch.float8_e4m3fn; allowed: with e4m3, and only with it")  # fmt: skip


def ascending(name: str, offsets: Tensor, rows: int) -> None:
    """What `checked()` asks of the offsets of groups over so many rows."""
    if bool((offsets[1:] < offsets[:-1]).any()) or int(offsets[0]) < 0 or int(offsets[-1]) > rows:
        raise ValueError(f"{name} is {offsets.tolist()}; allowed: ascending, 0 to {rows}")


def scales(name: str, scale: Tensor) -> None:
    """What `checked()` asks of the scales of codes."""
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise ValueError(f"{name} holds {float(scale[~(scale.isfinite() & (scale > 0))][0])}; allowed: positive and "
                         "finite")  # fmt: skip
