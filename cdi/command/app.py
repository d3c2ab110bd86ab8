"""The ``amd-cdi`` application: its commands, its exit status and its last line of defence."""

from __future__ import annotations

import errno
import io
import os
import sys
from copy import copy
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from cdi.command import doctor, generate, hooks, installing, look, runtime, share
from cdi.command.arguments import Json, Sample, SpecDir, StateDir, Sysroot, UsageDir
from cdi.command.output import write
from cdi.errors import AmdCdiError
from cdi.version import __version__

DEBUG = "AMD_CDI_DEBUG"

COMMON = {"as_json", "sysroot", "sample", "spec_dir", "state_dir", "usage_dir", "debug"}
"""Parameters of ``settings`` that may stand after a command as well, as those of kubectl do."""

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
app.command("doctor")(doctor.doctor)
app.command("hooks-d")(hooks.hooks_d)
app.command("install")(installing.install)
app.command("uninstall")(installing.uninstall)
app.command("refresh")(installing.refresh)
app.add_typer(share.app, name="share")
app.add_typer(runtime.app, name="runtime")


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"amd-cdi {__version__}\n")
        raise typer.Exit


def _debug(wanted: bool) -> None:
    if wanted:
        os.environ[DEBUG] = "1"


@app.callback()
def settings(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    as_json: Json = False,
    sysroot: Sysroot = Path("/"),
    sample: Sample = "",
    spec_dir: SpecDir = None,
    state_dir: StateDir = None,
    usage_dir: UsageDir = None,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", envvar=DEBUG, callback=_debug, help="Show where an error came from."
        ),
    ] = False,
) -> None:
    """Take what can stand before a command; the options' callbacks have kept it."""


def command_line() -> Any:
    """Return the command line, with the options of ``settings`` on every command as well."""
    root = typer.main.get_command(app)
    common = [copy(param) for param in root.params if param.name in COMMON]
    for param in common:
        param.expose_value = False
    groups = [root]
    while groups:
        for command in getattr(groups.pop(), "commands", {}).values():
            command.params += common
            groups.append(command)
    return root


def run() -> NoReturn:
    """Run the command line and exit: 0 done, 1 failed, 2 used wrongly, 130 interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Not every terminal has every character, and file names may hold anything.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            command_line()(prog_name="amd-cdi")
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
