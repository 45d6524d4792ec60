"""The ledger as tables for a terminal. Every table says its units, dtypes, terms, chip and kind of peaks."""

from collections.abc import Sequence
from decimal import Decimal

from rich.table import Table

from tilesieve.ledger.chips import Chip
from tilesieve.ledger.models import Model
from tilesieve.ledger.roofline import floor, seconds
from tilesieve.ledger.rows import Row, total
from tilesieve.ledger.step import Step

UNITS = "Units: MB = 1e6 B, GFLOP = 1e9 multiplications and additions, 1 us = 1e-6 s."
TERMS = (
    "Counted: bytes_min, every input of an operator read once and every output written once; FLOPs of products, "
    "norms, rotations, SwiGLU, residual sums, quantising and the votes of heads. Not counted: attention's softmax, "
    "sampling, the host, links. Arithmetic that is no product is put under the bf16 roof, so a floor stays a floor."
)


def number(value: float) -> str:
    """Four figures, no exponent: 0.000002304, 3.146, 1026."""
    return f"{Decimal(f'{value:.4g}'):f}"


def chip_line(chip: Chip, *, graph: bool) -> str:
    peaks = ", ".join(f"{name} {number(peak / 1e12)}" for name, peak in chip.flops)
    how = "CUDA graph" if graph else "eager"
    launch = chip.launch_graph if graph else chip.launch_eager
    return (
        f"Chip: {chip.name}, peaks {chip.kind} ({chip.source}): {peaks} TFLOP/s; {number(chip.bytes_per_second / 1e9)} "
        f"GB/s; {number(launch * 1e6)} us a launch ({how}, {chip.launch_source})."
    )


def dtype_line(step: Step) -> str:
    scores = "" if step.k is None else f"; reduced keys {step.score_format}, scores fp32, positions int32"
    return f"Dtypes: weights and activations bf16; keys and values {step.cache}{scores}; attention sums fp32."


def step_table(model: Model, step: Step, rows: Sequence[Row], chip: Chip, *, graph: bool = True) -> Table:
    """One decode step, a line a row, and the total."""
    way = "dense" if step.k is None else f"sparse: k = {step.k} a {step.share}, d_score = {step.d_score}"
    table = Table(
        title=f"{model.name}, one decode step at {step.context} positions, batch {step.batch}, {way}",
        caption="\n".join((UNITS, dtype_line(step), TERMS, chip_line(chip, graph=graph))),
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("stage")
    table.add_column("what")
    for heading in ("calls", "GFLOP", "MB", "FLOP/B", "floor us", "share"):
        table.add_column(heading, justify="right")
    table.add_column("roof")
    whole = seconds(rows, chip, graph=graph)
    for row in rows:
        under = floor(row, chip, graph=graph)
        table.add_row(row.stage, row.op, str(row.calls), *_numbers(row, under.seconds, whole), under.roof)
    everything = Row("total", "", sum(row.calls for row in rows), total(rows))
    table.add_section()
    table.add_row("", "total", str(everything.calls), *_numbers(everything, whole, whole), "")
    return table


def _numbers(row: Row, time: float, whole: float) -> tuple[str, ...]:
    return (
        number(row.cost.flops / 1e9),
        number(row.cost.bytes_min / 1e6),
        number(row.cost.intensity),
        number(time * 1e6),
        f"{time / whole:.1%}" if whole else "",
    )


def rows_table(rows: Sequence[Row], *, title: str = "observed calls") -> Table:
    """What a Ledger saw: calls, host seconds, cost."""
    table = Table(title=title, caption=f"{UNITS}\n{TERMS}\nSeconds are host time.", title_justify="left")
    for heading in ("phase", "stage", "operator"):
        table.add_column(heading)
    for heading in ("calls", "seconds", "GFLOP", "MB", "GB/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        rate = number(row.cost.bytes_min / 1e9 / row.seconds) if row.seconds else ""
        cells = (str(row.calls), f"{row.seconds:.4f}", number(row.cost.flops / 1e9), number(row.cost.bytes_min / 1e6))
        table.add_row(row.phase, row.stage, row.op, *cells, rate)
    return table
