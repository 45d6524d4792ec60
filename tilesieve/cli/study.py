"""`tilesieve study`: dense against sparse on a real model and a real text."""

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
    score_format: Annotated[str, typer.Option(help="score_fp32, score_bf16, score_int8 or score_fp8")] = "score_int8",
    steps: Annotated[int | None, typer.Option(help="Tokens to continue greedily [32]")] = None,
    out: Annotated[Path, typer.Option(help="Folder of study.jsonl, study.json and report.html")] = Path("out/study"),
    quick: Annotated[bool, typer.Option("--quick", help="1024 tokens: a first look in about a minute")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, even where finished rows could be used")] = False,
) -> None:
    """Run a model dense, then under six selections; say what each saves and what it loses.

    Without arguments: SmolLM2-135M-Instruct on Hamlet. Finished runs are kept as they come, and a
    study that was stopped goes on where it was.
    """
    from rich.console import Console

    from tilesieve.cli.summary import progress, show
    from tilesieve.report import write_pngs, write_report
    from tilesieve.study.plan import Plan
    from tilesieve.study.run import run_study

    given: dict[str, Any] = {
        "tokens": tokens, "steps": steps, "budget": k, "budgets": None if budgets is None else numbers(budgets),
        "d_score": d_score, "scoring": scoring, "score_format": score_format,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    plan = Plan(model, text, **{**(QUICK if quick else {}), **given})
    console = Console()
    with progress(console, 4 + len(plan.budgets)) as tell:
        result = run_study(plan, out, fresh=fresh, tell=tell)
    report = write_report(result, out / "report.html")
    write_pngs(result, out)
    show(console, result)
    console.print(f"\nreport   {report}\nnumbers  {out / 'study.json'}")


def numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"budgets is {text!r}; allowed: integers with commas, like 64,256,512") from error
