"""``amd-cdi install``, ``uninstall`` and ``refresh``: what a node is given, and loses again."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from cdi.command import output
from cdi.command.arguments import DryRun, Settings
from cdi.errors import AmdCdiError, PermanentError
from cdi.files import lock, make_directory
from cdi.install import places, steps, units
from cdi.install.places import Places
from cdi.install.release import Payload
from cdi.install.steps import Step
from cdi.node import topology
from cdi.node.gpu import Node
from cdi.state import ledger as ledgers
from cdi.state import store
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.version import __version__

CARRIED = Path(__file__).resolve().parents[1] / "native"
"""What a wheel brings for the node."""

PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        envvar="AMD_CDI_PREFIX",
        help="Folder of the hook and the library.",
        show_default="where they are, or else /opt/amd-cdi",
    ),
]


def install(
    ctx: typer.Context,
    prefix: PrefixOption = None,
    source: Annotated[
        Path,
        typer.Option(
            "--from",
            envvar="AMD_CDI_INSTALL_FROM",
            help="Folder that has amd-oci-hook and libamvgpu.so.",
            show_default="what this package brings",
        ),
    ] = CARRIED,
    dry_run: DryRun = False,
) -> None:
    """Give this node all that shares need: hook, library, folders, units, and its specs.

    Run it again after each upgrade: the version that was there counts until the new one is
    complete, and goes when no spec names it. With --sysroot another system's tree is prepared.
    """
    given: Settings = ctx.obj
    paths = given.paths
    payload = Payload(__version__, source)
    node, warnings = _node(paths)
    command = None
    if units.is_there(paths.sysroot):
        command = _command(paths.sysroot)
    else:
        warnings.append(
            "no systemd is there to refresh the specs and to mount the usage regions at boot; let "
            "whatever starts the node run `amd-cdi install` again, which does both"
        )
    place = _place(paths, prefix, ledgers.load(paths.state_dir))
    with ExitStack() as locks:
        if not dry_run:
            make_directory(place.releases.folder)
            locks.enter_context(lock(place.releases.folder))
            place.releases.remove([])
        ledger = ledgers.load(paths.state_dir)
        wanted = steps.installing(place, payload, ledger, node, command)
        taken = _take(list(wanted), warnings, dry_run)
    _report(taken, warnings, dry_run, given.as_json, f"amd-cdi {payload.version} is installed")


def uninstall(
    ctx: typer.Context,
    prefix: PrefixOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", envvar="AMD_CDI_FORCE", help="Also while shares live."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Take everything away again: specs, hook, library, units, logs, and what is known of shares.

    Containers that run keep what they have. The command itself goes as it came: with pipx, uv or
    pip.
    """
    given: Settings = ctx.obj
    paths = given.paths
    place = _place(paths, prefix, _ledger(paths, force))
    own = place.releases.folder
    with ExitStack() as locks:
        for directory, name in (
            (own, "."),
            (paths.state_dir, store.LOCK_FILE),
            (paths.spec_dir, store.LOCK_FILE),
        ):
            if directory.is_dir() and not dry_run:
                locks.enter_context(lock(directory, name=name))
        ledger = _ledger(paths, force)
        if ledger.shares and not force:
            shares = ", ".join(share.name for share in ledger.shares)
            raise PermanentError(
                f"nothing is removed while shares live, and these do: {shares}",
                "remove them with `amd-cdi share remove`, or the pods they are of; or use --force",
            )
        if own.is_dir() and not dry_run:
            place.releases.remove([])
        warnings: list[str] = []
        taken = _take(list(steps.removing(place, ledger)), warnings, dry_run)
    _report(taken, warnings, dry_run, given.as_json, "nothing of amd-cdi is left")


def refresh(ctx: typer.Context) -> None:
    """Write the specs anew with the options that they have, as at boot."""
    given: Settings = ctx.obj
    paths = given.paths
    made = store.update(paths, topology.read_node(paths.sysroot), lambda ledger: ledger)
    warnings = [*made.warnings, *([] if given.sample else store.missing(made, paths))]
    output.warn(warnings)
    if given.as_json:
        output.document({"path": str(made.path), "changed": made.changed, "warnings": warnings})
    else:
        output.lines([f"{'wrote' if made.changed else 'up to date:'} {made.path}"])


def _node(paths: Paths) -> tuple[Node | None, list[str]]:
    """Return the node, or why its specs have to wait."""
    try:
        return topology.read_node(paths.sysroot), []
    except AmdCdiError as error:
        hint = "the specs are written at the next boot, or with `amd-cdi refresh`"
        return None, [f"no GPU can be used yet: {error.message}; {hint}"]


def _ledger(paths: Paths, force: bool) -> Ledger:
    """Return the ledger; a damaged one says nothing, which force makes do with."""
    try:
        return ledgers.load(paths.state_dir)
    except PermanentError:
        if not force:
            raise
        return Ledger()


def _place(paths: Paths, prefix: str | None, ledger: Ledger) -> Places:
    chosen = places.prefix_of(ledger) if prefix is None else PurePosixPath(prefix)
    if not chosen.is_absolute() or ".." in chosen.parts or not str(chosen).isprintable():
        raise typer.BadParameter(f"--prefix is an absolute path of printable characters: {prefix}")
    return Places(paths, chosen)


def _command(sysroot: Path) -> str:
    """Return what units of a system run: this command, or in another's tree the one it will have.

    systemd looks for a bare name in its usual folders.
    """
    own = Path(sys.executable).with_name("amd-cdi")
    return str(own) if sysroot == Path("/") and own.exists() else "amd-cdi"


def _take(wanted: Iterable[Step], warnings: list[str], dry_run: bool) -> list[Step]:
    """Take all steps, unless they shall be shown only; return those that were taken."""
    taken = []
    for step in wanted:
        if not dry_run:
            try:
                step.take()
            except AmdCdiError as error:
                if step.vital:
                    raise
                warnings.append(str(error))
                continue
        taken.append(step)
    return taken


def _report(taken: list[Step], warnings: list[str], dry_run: bool, as_json: bool, end: str) -> None:
    output.warn(warnings)
    if as_json:
        done = [{"action": step.action, "path": str(step.path)} for step in taken]
        output.document({"steps": done, "dry_run": dry_run, "warnings": warnings})
        return
    output.lines([f"{'would ' if dry_run else ''}{step}" for step in taken])
    if not dry_run:
        output.lines([end])
