"""What a study shows in the terminal: its progress, and a table of the result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


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
    """One line a run: what it loses, what it keeps, what it reads."""
    meta = study["meta"]
    table = Table(
        title=f"{meta['model']} on {meta['text']}: {meta['tokens']} tokens, perplexity over {meta['scored'][0]} to "
        f"{meta['scored'][1]}",
        caption="mass: share of dense attention on the selected positions, last 256 rows. MB = 1e6 bytes that the "
        f"attention of one decoded token must move at the least, all layers, at full context ({meta['dtype']}).",
    )
    table.add_column("run")
    for name in ("perplexity", "vs dense", "KL mean", "KL worst", "mass", "worst", "overlap", "MB/token", "pass s",
                 "tok/s", "first different token"):  # fmt: skip
        table.add_column(name, justify="right")
    for run in study["runs"]:
        said = run["continuation"] or {}
        differs = said.get("diverges_at")
        table.add_row(
            run["label"], f"{run['perplexity']:.3f}", f"{run['delta']:+.2%}", _number(run["kl_mean"], ".4f"),
            _number(run["kl_worst"], ".2f"), _number(run["mass_mean"], ".3f"), _number(run["mass_worst"], ".3f"),
            _number(run["overlap"], ".3f"), f"{run['bytes_per_token'] / 1e6:.2f}", f"{run['seconds']:.1f}",
            _number(said.get("tokens_per_second"), ".1f"), "none" if differs is None else str(differs),
        )  # fmt: skip
    console.print(table)


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
