"""``amd-cdi runtime configure``: what lets a container runtime give CDI devices."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal

import typer

from cdi.command import output
from cdi.command.arguments import DryRun, HookPath, HookStage, Settings, usage
from cdi.plan.options import Options
from cdi.runtime import change, host
from cdi.runtime.change import Change
from cdi.state import ledger

Runtime = Literal["containerd", "docker", "crio", "podman"]

app = typer.Typer(
    help="Container runtimes: let them give CDI devices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("configure")
def configure(
    ctx: typer.Context,
    runtime: Annotated[
        Runtime, typer.Option(envvar="AMD_CDI_RUNTIME", help="The container runtime.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="AMD_CDI_RUNTIME_CONFIG",
            help="Its main configuration file.",
            show_default="where it looks for one",
        ),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Take away what this command has written, and no more.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Restart it by systemd if its configuration changed.")
    ] = False,
    hook_path: HookPath = None,
    hook_stage: HookStage = "prestart",
    dry_run: DryRun = False,
) -> None:
    """Let a container runtime give CDI devices: write what it lacks, and nothing else.

    Where it reads drop-in files, a file of our own is written. Elsewhere single values are changed
    in its file, and what that was before is kept beside it.
    """
    given: Settings = ctx.obj
    root = given.root
    if restart and root != Path("/"):
        raise typer.BadParameter("--restart restarts what runs here, so it takes no --sysroot")
    kind = host.KINDS[runtime]
    place = host.program(kind) if root == Path("/") else None
    version = host.version_of(place) if place else None
    path = config.absolute() if config else host.default_config(kind, root)
    known = ledger.load(given.paths.state_dir).options.hook_path
    with usage():
        options = Options(hook_path=hook_path or known, hook_stage=hook_stage)
    found = host.configuration(kind, path, root, version, options)
    spec_dir = str(given.spec_dir[-1] if given.spec_dir else "/etc/cdi")
    changes = found.removal() if unset else found.changes(spec_dir)
    if not dry_run:
        change.write(changes)
    restarted = bool(restart and changes and kind.unit and not dry_run)
    _report(kind, path, changes, restarted=restarted, dry_run=dry_run, as_json=given.as_json)
    if restarted:
        host.restart(kind)


def _report(
    kind: host.Kind,
    path: Path,
    changes: list[Change],
    *,
    restarted: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    stale = bool(changes and kind.unit and not restarted)
    if as_json:
        output.document(
            {
                "runtime": kind.name,
                "config": str(path),
                "changes": [
                    {"path": str(one.path), "action": "remove" if one.after is None else "write"}
                    for one in changes
                ],
                "restart": stale,
            }
        )
    elif not changes:
        output.lines([f"up to date: {path}" if path.exists() else f"{kind.name} needs no change"])
    elif dry_run:
        output.write("".join(_difference(one) for one in changes))
    else:
        output.lines(
            f"{'wrote' if one.after is not None else 'removed'} {one.path}" for one in changes
        )
    if stale and not dry_run:
        output.warn([f"{kind.name} reads it when it starts: systemctl restart {kind.unit}"])


def _difference(one: Change) -> str:
    """Return the lines that change, and no others: such files may hold passwords."""
    if one.path.name.endswith(change.BACKUP):
        return f"{'removes' if one.after is None else 'keeps the earlier file as'} {one.path}\n"
    before, after = ((text or "").splitlines(keepends=True) for text in (one.before, one.after))
    names = ("/dev/null" if text is None else str(one.path) for text in (one.before, one.after))
    return "".join(
        line if line.endswith("\n") else f"{line}\n"
        for line in difflib.unified_diff(before, after, next(names), next(names), n=0)
    )
