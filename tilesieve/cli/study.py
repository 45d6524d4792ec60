"""`tilesieve study`: dense against sparse on a real model and a real text."""

import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

# --quick: the same sweep on fewer tokens, budgets in proportion.
QUICK = MappingProxyType({"tokens": 1024, "steps": 8, "budgets": (32, 64, 128), "budget": 64})


def study(
    model: Annotated[Path | None, typer.Option(help="Folder of a transformers model, or a .gguf file")] = None,
    text: Annotated[Path | None, typer.Option(help="A UTF-8 text")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens of the text; the second half is scored [4096]")] = None,
    budgets: Annotated[str | None, typer.Option(help="k of the exact runs, comma-separated [64,256,512]")] = None,
    k: Annotated[int | None, typer.Option("--k", help="k of the low-rank and window runs [256]")] = None,
    scoring: Annotated[
        str | None, typer.Option(help="Reduced keys: prefix, pairs_slow, pairs_fast or pca [pairs_slow where it fits]")
    ] = None,
    d_score: Annotated[int | None, typer.Option(help="Dimensions of the reduced keys [half of a key's]")] = None,
    score_format: Annotated[
        str | None, typer.Option(help="score_fp32, score_bf16, score_int8 or score_fp8 [score_int8]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Tokens to continue greedily [16]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of study.jsonl, study.json and report.html")] = Path("out/study"),
    quick: Annotated[bool, typer.Option("--quick", help="1024 tokens: a first look in a minute or two")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, even where finished rows could be used")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All sections, the ladder on the whole text: about half an hour")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Look at a recorded trace (JSONL) instead of a model")] = None,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(help="Hold two finished studies side by side: folders, or study.json")
    ] = None,
) -> None:
    """Run a model dense, then under six selections; say what each saves and what it loses, and where.

    Without arguments: SmolLM2-135M-Instruct on Hamlet. Finished runs are kept as they come, and a
    study that was stopped goes on where it was.
    """
    given: dict[str, Any] = {
        "tokens": tokens, "steps": steps, "budget": k, "budgets": None if budgets is None else numbers(budgets),
        "d_score": d_score, "scoring": scoring, "score_format": score_format,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if trace is not None or compare is not None:
        others = {"model": model, "text": text, "quick": quick or None, "full": full or None, "fresh": fresh or None,
                  "k": k, **{name: value for name, value in given.items() if name != "budget"}}  # fmt: skip
        alone(trace, compare, ["--" + n.replace("_", "-") for n, value in others.items() if value is not None])
    if compare is not None:
        compared(*compare, out)
    elif trace is not None:
        traced(trace, out)
    else:
        from tilesieve.study.plan import Plan

        studied(Plan(model, text, full=full, **{**(QUICK if quick else {}), **given}), out, fresh)


def wide_console() -> Any:
    """A pipe or a file has no width; the tables need this much."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def alone(trace: Path | None, compare: tuple[Path, Path] | None, others: list[str]) -> None:
    """--trace and --compare read what is finished; a model has no place there. Raises ValueError."""
    if trace is not None and compare is not None:
        raise ValueError("--trace came with --compare; allowed: one of them")
    if others:
        raise ValueError(f"{'--trace' if compare is None else '--compare'} came with {others[0]}; allowed: --out alone")


def studied(plan: Any, out: Path, fresh: bool) -> None:
    from tilesieve.cli.summary import findings, ladder, progress, show
    from tilesieve.study.run import run_study

    console = wide_console()
    with progress(console) as tell:
        result = run_study(plan, out, fresh=fresh, tell=tell, command=shlex.join(["tilesieve", *sys.argv[1:]]))
    show(console, result)
    ladder(console, result)
    findings(console, result)
    written(console, result, out)


def traced(trace: Path, out: Path) -> None:
    """A trace from elsewhere: its timelines, overlaps and findings."""
    from tilesieve.cli.summary import findings
    from tilesieve.study.foreign import run_trace

    console = wide_console()
    result = run_trace(trace, out)
    findings(console, result)
    written(console, result, out)


def compared(a: Path, b: Path, out: Path) -> None:
    """Two studies side by side, in the terminal and as a page."""
    from tilesieve.cli.compare import show
    from tilesieve.report import write_compare
    from tilesieve.study.store import read_study

    first, second = read_study(a), read_study(b)
    console = wide_console()
    show(console, first, second, names=(str(a), str(b)))
    console.print(f"\nreport   {write_compare(first, second, out / 'compare.html')}")


def written(console: Any, result: dict[str, Any], folder: Path) -> None:
    """The page and the pictures of a finished study, beside its numbers."""
    from tilesieve.report import write_pngs, write_report

    report = write_report(result, folder / "report.html")
    write_pngs(result, folder)
    console.print(f"\nreport   {report}\nnumbers  {folder / 'study.json'}")


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a study.json")],
) -> None:
    """Write report.html and the PNGs of a finished study again, from its study.json."""
    from tilesieve.study.store import read_study

    written(wide_console(), read_study(folder), folder if folder.is_dir() else folder.parent)


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"budgets is {text!r}; allowed: integers with commas, like 64,256,512") from error
