"""`tilesieve ops`: every operator in flow order."""


def ops() -> None:
    """List the operators in flow order: score, select, plan, gather, compute, combine."""
    from rich.console import Console
    from rich.table import Table

    from tilesieve.ops.catalogue import CATALOGUE

    table = Table("stage", "operator", "what it does", title="tilesieve.ops", title_justify="left")
    last = ""
    for entry in CATALOGUE:
        table.add_row(entry.stage if entry.stage != last else "", entry.name, entry.summary)
        last = entry.stage
    Console().print(table)
