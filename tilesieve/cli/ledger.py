"""`tilesieve ledger`: what one decode step must cost, dense against sparse."""

from typing import Annotated, Any

import typer


def ledger(
    model: Annotated[
        str, typer.Option(help="SmolLM2-135M, Llama-3.1-8B or the path of a config.json")
    ] = "SmolLM2-135M",
    context: Annotated[int, typer.Option(help="Positions the new token sees, itself included")] = 32768,
    batch: Annotated[int, typer.Option(help="Sequences, one new token each")] = 1,
    k: Annotated[int, typer.Option("--k", help="Selected positions")] = 256,
    d_score: Annotated[int, typer.Option(help="Dimensions of the reduced keys")] = 32,
    score_format: Annotated[str, typer.Option(help="score_fp32, score_bf16, score_int8 or score_fp8")] = "score_int8",
    share: Annotated[str, typer.Option(help="One selection per layer, kv_head or q_head")] = "layer",
    packed: Annotated[bool, typer.Option("--packed", help="Gather into a packed buffer first")] = False,
    chip: Annotated[str, typer.Option(help="H200 (datasheet) or H200-measured")] = "H200",
    eager: Annotated[bool, typer.Option("--eager", help="Launches from Python, not in a CUDA graph")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers as JSON, nothing else")] = False,
) -> None:
    """What one decode step must cost, dense against sparse: FLOPs, bytes, the floor on a chip and its roof."""
    from tilesieve.ledger.chips import chip as chip_of
    from tilesieve.ledger.models import model as model_of
    from tilesieve.ledger.step import Step

    shape, on = model_of(model), chip_of(chip)
    step = Step(context, batch, k, d_score, score_format, share, packed=packed)
    if as_json:
        import json

        typer.echo(json.dumps(_numbers(shape, step, on, not eager), indent=1))
    else:
        _tables(shape, step, on, not eager)


def _numbers(model: Any, step: Any, chip: Any, graph: bool) -> dict[str, Any]:
    from dataclasses import asdict, replace

    from tilesieve.ledger import total
    from tilesieve.ledger.roofline import context_flip, floor, k_limit, seconds
    from tilesieve.ledger.step import decode_step

    def side(s: Any) -> dict[str, Any]:
        rows = decode_step(model, s)
        cost = total(rows)
        return {
            "rows": [_row(row, floor(row, chip, graph=graph)) for row in rows],
            "flops": cost.flops,
            "bytes_min": cost.bytes_min,
            "launches": cost.launches,
            "floor_seconds": seconds(rows, chip, graph=graph),
        }

    return {
        "model": asdict(model),
        "step": asdict(step),
        "chip": asdict(chip),
        "graph": graph,
        "dense": side(replace(step, k=None)),
        "sparse": side(step),
        "k_limit": k_limit(model, step),
        "context_flip": context_flip(model, step, chip, graph=graph),
    }


def _row(row: Any, under: Any) -> dict[str, Any]:
    return {
        "stage": row.stage,
        "what": row.op,
        "calls": row.calls,
        "flops": row.cost.flops,
        "bytes_min": row.cost.bytes_min,
        "launches": row.cost.launches,
        "dtype": row.dtype,
        "floor_seconds": under.seconds,
        "roof": under.roof,
    }


def _tables(model: Any, step: Any, chip: Any, graph: bool) -> None:
    from dataclasses import replace

    from rich.console import Console

    from tilesieve.ledger.roofline import context_flip, k_limit, seconds
    from tilesieve.ledger.step import decode_step
    from tilesieve.ledger.tables import step_table

    # All numbers before the first line, so that a wrong value prints its error and nothing else.
    sides = [(side, decode_step(model, side)) for side in (replace(step, k=None), step)]
    dense, sparse = (seconds(rows, chip, graph=graph) for _, rows in sides)
    flip = context_flip(model, step, chip, graph=graph)
    console = Console()
    if not console.is_terminal:  # a pipe or a file has no width; the tables need this much
        console.width = 120
    for side, rows in sides:
        console.print(step_table(model, side, rows, chip, graph=graph))
        console.print()
    where = "at no context up to 2^24" if flip is None else f"from a context of {flip} on"
    console.print(f"Floors: dense {dense * 1e6:.1f} us, sparse {sparse * 1e6:.1f} us, {dense / sparse:.2f} x.")
    console.print(f"On this chip sparse pays {where}, with everything else as above.")
    console.print(f"Reduced keys and selected rows together are no more bytes than all rows up to k = "
                  f"{k_limit(model, step)} (per kv head). This bounds cost, not quality.")  # fmt: skip
