"""Where topk is tried."""

from typing import Any

import torch
from torch import Generator, Tensor

from tilesieve.types import Case, Pages, Rows

ROWS = "scores"


def _scores(generator: Generator, shape: tuple[int, ...], values: str) -> Tensor:
    """normal; few: a handful of values, so that ties are everywhere; plateau: ReLU zeros;
    wild: NaN, infinities, -0 and denormals among them; none: -inf and NaN only."""
    scores = torch.randn(shape, generator=generator)
    if values == "few":
        return (scores * 2).round() / 2
    if values == "plateau":
        return scores.sub(1.5).relu()
    if values == "wild":
        odd = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-45, -1e-45, 3e38])
        pick = torch.randint(0, 2 * len(odd), shape, generator=generator)
        return torch.where(pick < len(odd), odd[pick % len(odd)], scores.round())
    if values == "none":
        return torch.where(scores > 0, torch.nan, -torch.inf)
    return scores


def _inputs(generator: Generator, *, rows: int, width: int, heads: int | None = None, values: str = "normal",
            ranged: bool = False, wide: bool = False, paged: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    """heads None: 2-D scores; ranged: start and end per row, empty ones among them; wide: past the
    borders too."""
    shape = (rows, width) if heads is None else (rows, heads, width)
    inputs: dict[str, Any] = {"scores": _scores(generator, shape, values), **more}

    def integers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, max(high, low + 1), size, generator=generator, dtype=torch.int32)

    if ranged:
        borders = integers(0, width + 1, 2, rows).sort(0).values
        borders[1, ::5] = borders[0, ::5]
        if wide:
            borders[0, ::3], borders[1, 1::3], borders[1, 2::4] = -3, width + 9, -2
        inputs |= {"start": borders[0].clone(), "end": borders[1].clone()}
    if paged:
        page_size, sequences = 4, 3
        most = -(-width // page_size)
        table = torch.randperm(sequences * most, generator=generator).int().view(sequences, most)
        length = integers(0, width + 1, sequences)
        rows_noun = Rows(integers(-1, sequences, rows), integers(-1, width, rows))
        inputs |= {"pages": Pages(table, length, page_size, width), "rows": rows_noun, "space": "position"}
    return inputs


def _case(name: str, invalid: bool = False, **shape: Any) -> Case:
    return Case(name, lambda generator: _inputs(generator, **shape), invalid=invalid)


CASES = (
    _case("small", rows=5, width=20, k=4),
    _case("paged", rows=7, width=37, heads=4, k=5, share="kv_head", groups=2, paged=True),
    _case("few_values", rows=9, width=150, k=30, values="few"),
    _case("plateau", rows=9, width=150, k=100, values="plateau"),
    _case("wild", invalid=True, rows=17, width=70, k=20, values="wild", ranged=True, wide=True),
    _case("mass", rows=6, width=130, heads=9, k=16, share="layer"),
    _case("mass_wild", rows=9, width=70, heads=6, k=20, share="kv_head", groups=2, values="wild", ranged=True),
    _case("mass_short_row", rows=4, width=7, heads=3, k=5, share="layer", ranged=True),
    _case("sum_wild", rows=9, width=70, heads=6, k=20, share="kv_head", groups=3, values="wild", reduce="sum"),
    _case("max_wild", rows=9, width=70, heads=6, k=20, share="layer", values="wild", reduce="max"),
    _case("heads_alone", rows=3, width=66, heads=5, k=8, values="few", ranged=True),
    _case("first_last", rows=9, width=66, heads=2, k=8, values="wild", ranged=True, first=3, last=5),
    _case("first_last_mass", rows=9, width=66, heads=4, k=12, share="layer", values="none", first=3, last=5),
    _case("local", rows=8, width=90, k=20, values="few", ranged=True, first=1, last=2, local_k=3, block=16),
    _case("local_mass", rows=4, width=90, heads=2, k=20, share="layer", ranged=True, local_k=2, block=8),
    _case("wider_than_scores", rows=4, width=10, heads=2, k=32, share="layer", values="wild"),
    _case("paged_exact_fit", rows=9, width=12, k=12, paged=True, first=1, last=1),
    _case("one_row", rows=1, width=5000, heads=2, k=300, share="layer"),
    _case("empty", rows=0, width=20, heads=3, k=4, share="layer", ranged=True),
    _case("empty_paged", rows=0, width=8, k=4, paged=True),
    _case("no_columns", rows=3, width=0, heads=2, k=4, share="layer"),
    _case("no_heads", rows=3, width=9, k=4, share="q_head", heads=0),
    _case("nothing_to_pick", rows=3, width=100, heads=2, k=4, share="layer", values="none"),
)


def alone(inputs: dict[str, Any], row: int) -> dict[str, Any]:
    """The inputs with nothing but row `row`; the pages are the same."""
    one = slice(row, row + 1)
    mine = {n: inputs[n][one] for n in ("scores", "start", "end") if inputs.get(n) is not None}
    if "rows" in inputs:
        mine["rows"] = Rows(inputs["rows"].seq[one], inputs["rows"].position[one])
    return inputs | mine


def touched(inputs: dict[str, Any], outputs: tuple[Tensor, ...]) -> int:
    """Bytes of the distinct elements a call must read and write, counted on the tensors."""
    scores = inputs["scores"]
    rows, width = scores.shape[0], scores.shape[-1]
    heads = scores[0].numel() // width if rows and width else 0
    pages: Any = inputs.get("pages")
    who: Any = inputs.get("rows")
    read, entries, seqs = 0, set(), set()
    for r in range(rows):
        start = max(0, int(inputs["start"][r])) if inputs.get("start") is not None else 0
        end = min(width, int(inputs["end"][r])) if inputs.get("end") is not None else width
        if who is not None:
            seq, position = int(who.seq[r]), int(who.position[r])
            known = 0 <= seq < len(pages.length) and position >= 0
            end = min(end, int(pages.length[seq]), position + 1) if known else 0
            seqs |= {seq} if known else set()
            entries |= {(seq, i // pages.page_size) for i in outputs[0][r].flatten().tolist() if i >= 0}
        read += heads * max(0, end - start)
    read += sum(inputs[n].numel() for n in ("start", "end") if inputs.get(n) is not None)
    read += 2 * rows * (who is not None) + len(entries) + len(seqs)
    written = outputs[:3] if who is not None else outputs[:2]  # the count stands in Slots too
    return 4 * read + sum(t.numel() * t.element_size() for t in written)
