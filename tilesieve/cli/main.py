"""The entry point `tilesieve`, and how an error reaches the user: one line, exit code 2."""

import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from rich.console import Console

from tilesieve.cli.ledger import ledger
from tilesieve.cli.ops import ops
from tilesieve.cli.study import report, study

KEPT = "finished runs and written files are kept; nothing half-written is left behind"

_DEBUG: ContextVar[bool] = ContextVar("tilesieve_debug", default=False)

app = typer.Typer(
    help="Select before you compute: what it costs, what it saves, what it loses.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _complain(text: str) -> None:
    # One line whatever the message holds; no markup, so that brackets in it stay.
    line = " ".join(text.split())
    Console(stderr=True, soft_wrap=True).print(line, style="bold red", markup=False, highlight=False)


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with its errors made into exit codes: wrong input and files 2, an interrupt 130.

    A KeyboardInterrupt's arguments and notes say what is kept; without any the general promise is printed.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # so that a closed pipe shows here
        except KeyboardInterrupt as stop:
            raise SystemExit(_stopped(stop)) from None
        except BrokenPipeError:
            sys.stdout = None  # nobody reads; do not flush again at exit
            raise SystemExit(1) from None
        except (ValueError, OSError) as error:
            if _DEBUG.get():
                traceback.print_exc()
            _complain(f"error: {error}")
            raise SystemExit(2) from None

    return run


def _stopped(stop: KeyboardInterrupt) -> int:
    notes = [*map(str, stop.args), *getattr(stop, "__notes__", [])]
    _complain(f"stopped: {'; '.join(notes) or KEPT}")
    return 130


def _version(wanted: bool) -> None:
    if wanted:
        from tilesieve import __version__

        typer.echo(f"tilesieve {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _DEBUG.set(debug)


for _command in (study, report, ledger, ops):
    app.command()(guarded(_command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments` (those of the process by default); returns the exit code."""
    try:
        app(None if arguments is None else list(arguments), prog_name="tilesieve")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except KeyboardInterrupt as stop:  # before a command began
        return _stopped(stop)
    return 0
