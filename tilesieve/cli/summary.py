"""What a study shows in the terminal: its progress, and a table of the result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

# Terminal columns from which every number is shown.
WIDE = 136


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
def progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """A line for what runs now, with its layers as a bar, and how many came before; yields tell(what, share)."""
    columns = (SpinnerColumn(), TextColumn("{task.description:<40}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("study", total=None)
        now = bars.add_task("", total=1.0)
        names: list[str] = []

        def tell(what: str, share: float) -> None:
            if what not in names:
                names.append(what)
                if not console.is_terminal:
                    console.print(f"· {what}")
                bars.update(whole, description=f"study: {len(names)} steps begun")
                bars.reset(now, description=what)
            bars.update(now, description=what, completed=share)

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
        caption=f"mass: share of dense attention on the selected positions, last {meta['rows_looked']} rows. "
        "MB = 1e6 bytes that the "
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


def ladder(console: Console, study: dict[str, Any]) -> None:
    """What each stage adds, in nats per token; nothing where the ladder was not climbed."""
    found = study["sections"].get("ladder")
    if not found:
        return
    table = Table(
        box=box.SIMPLE, pad_edge=False, padding=(0, 1), title=f"The ladder: {found['tokens']} tokens, k {found['k']}",
        caption=f"mnat: 1/1000 nat per token, about 0.1 % of perplexity. own: over the rung before; alone: on exact "
        f"selection by itself. Total {1e3 * found['total']:+.1f}, of which interaction "
        f"{1e3 * found['interaction']:+.1f}. Side rungs in brackets are not summed.",
    )  # fmt: skip
    for title in ("rung", "own mnat", "alone", "vs dense", "KL worst", "mass", "top-1"):
        table.add_column(title, justify="left" if title == "rung" else "right", no_wrap=True)
    for rung in found["rungs"]:
        label = f"({rung['label']})" if rung["side"] else rung["label"]
        alone = "–" if rung["alone"] is None else f"{1e3 * rung['alone']:+.1f}"
        table.add_row(label, f"{1e3 * rung['own']:+.1f}", alone, f"{rung['delta']:+.2%}", f"{rung['kl_worst']:.2f}",
                      f"{rung['mass_mean']:.3f}", f"{rung['top1']:.3f}")  # fmt: skip
    console.print(table)


def findings(console: Console, study: dict[str, Any]) -> None:
    """The findings that fired, each with its evidence and what to try."""
    fired = [finding for finding in study["findings"] if finding["fired"]]
    asked = sum(finding["value"] is not None for finding in study["findings"])
    console.print(f"{len(fired)} of {asked} symptoms looked for were found{':' if fired else '.'}")
    for finding in fired:
        console.print(f"• {finding['title']}. {finding['evidence']}", highlight=False, markup=False)
        console.print(f"  Try: {finding['try']}.", style="dim", highlight=False, markup=False)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
