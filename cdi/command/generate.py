"""``amd-cdi generate``: the spec of this node."""

from __future__ import annotations

import gc
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from cdi.command import arguments, output
from cdi.command.arguments import DryRun, HookPath, HookStage, Require, Settings
from cdi.command.look import show_difference
from cdi.errors import AmdCdiError
from cdi.node import topology
from cdi.plan import options as settings
from cdi.plan.options import Options
from cdi.state import ledger, removal, store
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs
from cdi.state.watch import watch

REMOVING = {"remove", "yes", "force", "dry_run"}
"""Parameters that go together."""


def generate(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            envvar="AMD_CDI_OUTPUT",
            help="File to write, '-' for standard output. What is written outside of the spec "
            "directory is a copy: nothing is kept of it.",
            show_default="amd.com-gpu.yaml in the spec directory",
        ),
    ] = "",
    form: Annotated[
        settings.Format | None,
        typer.Option(
            "--format", envvar="AMD_CDI_FORMAT", help="Format.", show_default="by suffix, else yaml"
        ),
    ] = None,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            "--device-name-strategy",
            parser=arguments.parsed_by(settings.strategy),
            metavar="[index|uuid|pci]",
            envvar="AMD_CDI_DEVICE_NAME_STRATEGY",
            help="What GPUs are named by; can be given more than once.",
            show_default="index and uuid",
        ),
    ] = None,
    split: Annotated[
        int | None,
        typer.Option(
            min=1, envvar="AMD_CDI_SPLIT", help="Offer every GPU in this many equal shares as well."
        ),
    ] = None,
    on_conflict: Annotated[
        settings.Conflict,
        typer.Option(
            envvar="AMD_CDI_ON_CONFLICT",
            help="What to do with device names that another spec in the directory has.",
        ),
    ] = "omit",
    hook_path: HookPath = None,
    hook_stage: HookStage = "prestart",
    require: Require = "any",
    allow_extra_devices: Annotated[
        bool,
        typer.Option(
            "--allow-extra-devices",
            envvar="AMD_CDI_ALLOW_EXTRA_DEVICES",
            help="Let containers with a share have other GPUs as well, as privileged ones do.",
        ),
    ] = False,
    library_path: Annotated[
        str | None,
        typer.Option(
            envvar="AMD_CDI_LIBRARY_PATH",
            help="libamvgpu.so on the host.",
            show_default="as it is",
        ),
    ] = None,
    keep_watching: Annotated[
        bool,
        typer.Option(
            "--watch",
            envvar="AMD_CDI_WATCH",
            help="Refresh when GPUs come, go or are repartitioned.",
        ),
    ] = False,
    remove: Annotated[
        bool,
        typer.Option(
            "--remove",
            help="Remove all that was written to the spec, state and usage directories instead: "
            "specs, also those of pods, the ledger, values and usage regions.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove while shares live as well.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Write the CDI spec of this node: every GPU, partition and share as a device."""
    given: Settings = ctx.obj
    paths = given.paths
    if remove or yes or force:
        _remove(ctx, remove=remove, yes=yes, force=force, dry_run=dry_run)
        return
    path = Path(target).absolute() if target not in {"", "-"} else None
    own = target == "" or (path is not None and path.parent.resolve() == paths.spec_dir.resolve())
    by_suffix: settings.Format = "json" if path is not None and path.suffix == ".json" else "yaml"
    chosen = form or by_suffix
    # Where they are is a fact of the node, and `amd-cdi install` says it.
    kept = ledger.load(paths.state_dir).options
    with arguments.usage():
        options = Options(
            file=path.name if own and path is not None else f"amd.com-gpu.{chosen}",
            format=chosen,
            strategies=tuple(settings.strategy(name) for name in strategies or ())
            or Options().strategies,
            split=split or 0,
            on_conflict=on_conflict,
            hook_path=hook_path or kept.hook_path,
            hook_stage=hook_stage,
            require=require,
            allow_extra_devices=allow_extra_devices,
            library_path=library_path or kept.library_path,
        )
    if keep_watching:
        if not own or dry_run:
            raise typer.BadParameter(
                "--watch keeps the spec directory, so it takes neither --dry-run nor an --output "
                "elsewhere"
            )
        _keep(paths, options, given)
        return
    node = topology.read_node(paths.sysroot)
    if own and not dry_run:
        made = store.update(paths, node, lambda before: replace(before, options=options))
    else:
        made = store.preview(paths, node, lambda before: replace(before, options=options))
    if target == "-":
        output.warn(made.warnings)
        output.write(made.text.decode())
    elif dry_run:
        output.warn(made.warnings)
        show_difference(path or paths.spec_dir / options.file, made, given.as_json)
    else:
        if path is not None and not own:
            made = replace(made, path=path, changed=store.export(path, made.text))
        _report(made, paths, given)


def _keep(paths: Paths, options: Options, given: Settings) -> None:
    """Refresh the spec until the process is told to end."""
    gc.enable()
    # The first process of a container gets no signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    for outcome in watch(paths, options):
        if isinstance(outcome, AmdCdiError):
            output.warn([str(outcome)])
        else:
            _report(outcome, paths, given)


def _remove(ctx: typer.Context, *, remove: bool, yes: bool, force: bool, dry_run: bool) -> None:
    """Remove all that was written, after asking."""
    if not remove:
        raise typer.BadParameter("--yes and --force are for --remove")
    if {name for name in ctx.params if _is_typed(ctx, name)} - REMOVING:
        raise typer.BadParameter("--remove goes with --yes, --force and --dry-run alone")
    given: Settings = ctx.obj
    paths = given.paths
    if not yes and not dry_run:
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "--remove asks first, and standard input is no terminal; give --yes, or look first "
                "with --dry-run"
            )
        files = removal.remove_all(paths, force=force, dry_run=True).files
        sys.stderr.writelines(f"{path}\n" for path in files)
        if files:
            typer.confirm(f"Remove these {len(files)} files?", abort=True, err=True)
    written = removal.remove_all(paths, force=force, dry_run=dry_run)
    if given.as_json:
        output.document(
            {
                "removed": [str(path) for path in written.files],
                "shares": list(written.shares),
                "dry_run": dry_run,
            }
        )
    else:
        verb = "would remove" if dry_run else "removed"
        output.lines([f"{verb} {path}" for path in written.files] or ["there is nothing to remove"])


def _report(made: NodeSpecs, paths: Paths, given: Settings) -> None:
    names = [device["name"] for device in made.rendering.devices]
    warnings = [*made.warnings, *([] if given.sample else store.missing(made, paths))]
    output.warn(warnings)
    if given.as_json:
        output.document(
            {
                "path": str(made.path),
                "changed": made.changed,
                "devices": names,
                "warnings": warnings,
            }
        )
    else:
        verb = "wrote" if made.changed else "up to date:"
        output.lines([f"{verb} {made.path} ({len(names)} devices)"])


def _is_typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
