"""What a model selected: positions by layer, head and query, in memory and as a file.

The file is JSON, one object a line. First, if any, a header:

    {"format": "tilesieve-trace-1", "length": 4096, "start": 0, ...}

length: positions there are, queries included; start: the position of step 0 (0 by default); other keys are kept as
they are. Then a row per layer, head and query, in any order:

    {"step": 17, "layer": 0, "head": -1, "positions": [0, 3, 17]}

The query of a row stands at position start + step and picks from 0 to itself, in any order; -1 is padding. head -1: one
set for all heads of the layer; a set of a kv head stands under the first of its query heads.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilesieve.hf.session import Seen

# Queries of a recording: this many spread over the text, and this many at its end, one after the other.
SPREAD = 64
TAIL = 128
# The head of a set that all heads of a layer share.
SHARED = -1
FORMAT = "tilesieve-trace-1"
# Positions are int32, and start + step must stay one.
LIMIT = 1 << 30


@dataclass
class Trace:
    """picks[layer, head]: query position -> the positions it selected, int32 ascending; head SHARED: one set for all.

    A set of one kv head stands under the first of its query heads. length: positions there are, queries included;
    start: the query position that a file calls step 0; about: what else a file's header says.
    """

    length: int
    picks: dict[tuple[int, int], dict[int, Tensor]] = field(default_factory=dict)
    start: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def k(self) -> int:
        """The size of the largest set."""
        return max((len(row) for picks in self.picks.values() for row in picks.values()), default=0)


@dataclass
class Recorder:
    """Fills a trace of a pass over `tokens` rows; call it with what `Session.watch` gets."""

    tokens: int
    trace: Trace = field(init=False)

    def __post_init__(self) -> None:
        self.trace = Trace(self.tokens)

    def wanted(self, query: int) -> bool:
        every = max(1, self.tokens // SPREAD)
        return query >= self.tokens - TAIL or query % every == every - 1

    def __call__(self, seen: Seen) -> None:
        query = seen.start + seen.q.shape[0] - sum(len(s.index) for s in seen.selections)
        for selection in seen.selections:
            index = selection.index if selection.index.dim() == 3 else selection.index[:, None]
            for row in index:
                if self.wanted(query):
                    for s, positions in enumerate(row):
                        head = SHARED if selection.index.dim() == 2 else s * seen.q.shape[1] // index.shape[1]
                        self.trace.picks.setdefault((seen.layer, head), {})[query] = positions[positions >= 0].clone()
                query += 1


def write_trace(trace: Trace, path: Path, **header: Any) -> None:
    """Write the file whole, or not at all; `header` is added to the trace's own."""
    whole = trace.about | header | {"format": FORMAT, "length": trace.length, "start": trace.start}
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"format": FORMAT} | whole) + "\n")
            for (layer, head), picks in sorted(trace.picks.items()):
                for query, positions in sorted(picks.items()):
                    row = {"step": query - trace.start, "layer": layer, "head": head, "positions": positions.tolist()}
                    file.write(json.dumps(row, separators=(",", ":")) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_trace(path: Path) -> Trace:
    """The trace of a file; positions ascending, each once. length, where no header says it: up to the last query.

    Raises ValueError naming the file, and the line where one is at fault.
    """
    if not path.is_file():
        raise ValueError(f"trace is {path}: no such file")
    header: dict[str, Any] = {}
    picks: dict[tuple[int, int], dict[int, Tensor]] = {}
    shared: dict[int, bool] = {}
    start, last = 0, -1
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            at = f"trace is {path}, line {number}"
            line = decoded(raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw, at)
            if line is None:
                continue
            if "format" in line and not header and not picks:
                header, start = line, header_start(line, at)
                continue
            layer, head, query, positions = row_of(line, start, at)
            own = picks.setdefault((layer, head), {})
            if query in own:
                raise ValueError(f"{at}: step {query - start} of layer {layer}, head {head} is there twice")
            if shared.setdefault(layer, head == SHARED) != (head == SHARED):
                raise ValueError(f"{at}: layer {layer} has sets for all heads (head {SHARED}) and for single heads")
            own[query] = positions
            last = max(last, query)
    if not picks:
        raise ValueError(f"trace is {path}: it holds no rows")
    length = header.get("length", last + 1)
    if length <= last:
        raise ValueError(f"trace is {path}: its header says length {length}, but a query stands at position {last}")
    about = {key: value for key, value in header.items() if key not in ("format", "length", "start")}
    return Trace(length, picks, start, about)


def decoded(raw: bytes, at: str) -> dict[str, Any] | None:
    """One line as an object; None for an empty one."""
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"{at}: not UTF-8: byte {raw[error.start]:#04x}") from error
    if not text:
        return None
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{at}: not JSON ({error})") from error
    if not isinstance(line, dict):
        raise ValueError(f"{at}: holds {type(line).__name__}; allowed: an object")
    return line


def header_start(header: dict[str, Any], at: str) -> int:
    if header["format"] != FORMAT:
        raise ValueError(f"{at}: format is {header['format']!r}; allowed: {FORMAT!r}")
    if "length" in header:
        integer(header, "length", 1, at)
    return integer({"start": 0} | header, "start", 0, at)


def row_of(row: dict[str, Any], start: int, at: str) -> tuple[int, int, int, Tensor]:
    """Layer, head, query position and picks of one row."""
    step, layer, head = integer(row, "step", 0, at), integer(row, "layer", 0, at), integer(row, "head", SHARED, at)
    positions, query = row.get("positions"), start + step
    if "positions" not in row:
        raise ValueError(f"{at}: positions is missing")
    if not isinstance(positions, list) or not all(type(p) is int for p in positions):
        raise ValueError(f"{at}: positions is {str(positions)[:40]!r}; allowed: a list of integers")
    if positions and min(positions) < -1:
        raise ValueError(f"{at}: positions holds {min(positions)}; allowed: 0 to the query's own, and -1 for padding")
    if positions and max(positions) > query:
        raise ValueError(
            f"{at}: position {max(positions)} lies after its query, which stands at {query} (start "
            f"{start} + step {step}); is the header's start, the position of step 0, missing?"
        )
    return layer, head, query, torch.tensor(sorted({*positions} - {-1}), dtype=torch.int32)


def integer(row: dict[str, Any], key: str, least: int, at: str) -> int:
    value = row.get(key)
    if key not in row:
        raise ValueError(f"{at}: {key} is missing")
    if type(value) is not int or not least <= value < LIMIT:
        raise ValueError(f"{at}: {key} is {str(value)[:40]!r}; allowed: an integer from {least} to {LIMIT - 1}")
    return value
