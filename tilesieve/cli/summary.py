"""What a study shows in the terminal: its progress, and a table of the result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

# Terminal columns from which every number is shown.
WIDE = 120


class Column(NamedTuple):
    title: str
    cell: Callable[[dict[str, Any]], str]
    always: bool = True


def _said(run: dict[str, Any]) -> dict[str, Any]:
    return run["continuation"] or {}


COLUMNS = (
    Column("ppl", lambda run: f"{run['perplexity']:.3f}"),
    Column("vs dense", lambda run: f"{run['delta']:+.2%}"),
    Column("KL", lambda run: _number(run["kl_mean"], ".4f"), always=False),
    Column("KL worst", lambda run: _number(run["kl_worst"], ".2f"), always=False),
    Column("mass", lambda run: _number(run["mass_mean"], ".3f")),
    Column("worst", lambda run: _number(run["mass_worst"], ".3f"), always=False),
    Column("overlap", lambda run: _number(run["overlap"], ".3f"), always=False),
    Column("MB/token", lambda run: f"{run['bytes_per_token'] / 1e6:.1f}"),
    Column("pass s", lambda run: f"{run['seconds']:.1f}", always=False),
    Column("tok/s", lambda run: _number(_said(run).get("tokens_per_second"), ".1f"), always=False),
    Column("≠ at", lambda run: "–" if _said(run).get("diverges_at") is None else str(_said(run)["diverges_at"])),
)


@contextmanager
def progress(console: Console, runs: int) -> Iterator[Callable[[str, float], None]]:
    """A bar for the runs and one for the layers of the present run; yields tell(what, share)."""
    columns = (SpinnerColumn(), TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("study", total=runs)
        names: list[str] = []
        tasks: list[Any] = []

        def tell(what: str, share: float) -> None:
            if what not in names:
                if tasks:
                    bars.update(tasks[-1], completed=1.0)
                names.append(what)
                tasks.append(bars.add_task(what, total=1.0))
                if not console.is_terminal:
                    console.print(f"· {what}")
                bars.update(whole, completed=max(0, len(names) - 2))
            bars.update(tasks[-1], completed=share)

        yield tell


def show(console: Console, study: dict[str, Any]) -> None:
    """One line a run: what it loses, what it keeps, what it reads; in a narrow terminal the main columns."""
    meta = study["meta"]
    table = Table(
        box=box.SIMPLE,
        pad_edge=False,
        padding=(0, 1),
        title=f"{meta['model']} on {meta['text']}: {meta['tokens']} tokens, perplexity over {meta['scored'][0]} to "
        f"{meta['scored'][1]}",
        caption="mass: share of dense attention on the selected positions, last 256 rows. MB = 1e6 bytes that the "
        f"attention of one decoded token must move at the least, all layers, at full context ({meta['dtype']}). "
        "≠ at: first token of the continuation that is not dense's.",
    )
    table.add_column("run", no_wrap=True)
    columns = [column for column in COLUMNS if column.always or console.width >= WIDE]
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    for run in study["runs"]:
        table.add_row(run["label"], *(column.cell(run) for column in columns))
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
