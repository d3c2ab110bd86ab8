"""The ``amd-cdi`` application: its commands, its exit status and its last line of defence."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from cdi.command import generate, hooks, look, share
from cdi.command.output import write
from cdi.errors import AmdCdiError
from cdi.version import __version__

DEBUG = "AMD_CDI_DEBUG"

app = typer.Typer(
    help="Exact shares of AMD GPUs for containers, through the Container Device Interface.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("list")(look.list_devices)
app.command("show")(look.show)
app.command("validate")(look.validate)
app.command("diff")(look.diff)
app.command("inject")(look.inject)
app.command("topology")(look.show_topology)
app.command("hooks-d")(hooks.hooks_d)
app.add_typer(share.app, name="share")


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"amd-cdi {__version__}\n")
        raise typer.Exit


@app.callback()
def settings(
    version: Annotated[  # noqa: ARG001 -- its callback has answered
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar=DEBUG, help="Show where an error came from.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    if debug:
        os.environ[DEBUG] = "1"


def run() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 used wrongly, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal has every character, and file names may hold anything.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="amd-cdi")
        finally:
            # Here and not at exit, where an error could no longer be told.
            sys.stdout.flush()
    except AmdCdiError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno == errno.EPIPE:
            _abandon_output()
            sys.exit(1)
        _fail(f"cannot go on: {error}")
    except Exception as error:  # noqa: BLE001 -- a user never sees a traceback
        _fail(f"unexpected {type(error).__name__}: {error}; please report it with --debug's output")
    sys.exit(0)


def _fail(message: str) -> NoReturn:
    if os.environ.get(DEBUG):
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"amd-cdi: error: {message}\n")
    _abandon_output()
    sys.exit(1)


def _abandon_output() -> None:
    """Keep the interpreter from flushing into a reader that is gone or a disk that is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
