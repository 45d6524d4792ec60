"""Two studies in the terminal: the runs that both have, and what changed from the first to the second."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("ppl", "perplexity", lambda v: f"{v:.3f}"), ("vs dense", "delta", lambda v: f"{v:+.2%}"),
    ("KL", "kl_mean", lambda v: f"{v:.4f}"), ("mass", "mass_mean", lambda v: f"{v:.3f}"),
    ("MB/token", "bytes_per_token", lambda v: f"{v / 1e6:.1f}"),
)  # fmt: skip


def show(console: Console, a: dict[str, Any], b: dict[str, Any], names: tuple[str, str]) -> None:
    """Each number as `first → second`; runs of one study alone are named below the table."""
    both = {run["name"]: run for run in a["runs"]}, {run["name"]: run for run in b["runs"]}
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1), title=f"{names[0]} → {names[1]}")
    table.add_column("run", no_wrap=True)
    for title, _, _ in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for name, run in both[0].items():
        if name in both[1]:
            other = both[1][name]
            label = run["label"] if run["label"] == other["label"] else f"{run['label']} → {other['label']}"
            table.add_row(label, *(change(run.get(key), other.get(key), form) for _, key, form in COLUMNS))
    console.print(table)
    for key in ("model", "text", "tokens", "dtype"):
        if a["meta"].get(key) != b["meta"].get(key):
            console.print(f"{key}: {a['meta'].get(key)} → {b['meta'].get(key)}")
    ladders = [study["sections"].get("ladder") or {} for study in (a, b)]
    for key in ("tokens", "k"):
        if ladders[0].get(key) != ladders[1].get(key):
            console.print(f"ladder, {key}: {ladders[0].get(key)} → {ladders[1].get(key)}")
    for here, there, name in ((0, 1, names[0]), (1, 0, names[1])):
        only = [run["label"] for n, run in both[here].items() if n not in both[there]]
        if only:
            console.print(f"only in {name}: {', '.join(only)}")
    fired = [{f["id"]: f["title"] for f in study.get("findings") or [] if f["fired"]} for study in (a, b)]
    for word, here, there in (("gone", 0, 1), ("new", 1, 0)):
        for id_, title in fired[here].items():
            if id_ not in fired[there]:
                console.print(f"{word}: {title}")


def change(before: float | None, after: float | None, form: Callable[[float], str]) -> str:
    """One number where both print alike."""
    shown = ["–" if value is None else form(value) for value in (before, after)]
    return shown[0] if shown[0] == shown[1] else " → ".join(shown)
