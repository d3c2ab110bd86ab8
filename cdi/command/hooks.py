"""``amd-cdi hooks-d``: the hook for runtimes that get their devices without CDI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cdi.command import output
from cdi.command.arguments import DryRun, HookPath, HookStage, Settings, usage
from cdi.files import make_directory
from cdi.plan.options import Options
from cdi.spec.hooksd import configuration
from cdi.state import ledger, store


def hooks_d(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            envvar="AMD_CDI_HOOKS_OUTPUT",
            help="File to write, '-' for standard output.",
            show_default="/usr/share/containers/oci/hooks.d/amd-cdi.json",
        ),
    ] = "",
    hook_path: HookPath = None,
    hook_stage: HookStage = "prestart",
    dry_run: DryRun = False,
) -> None:
    """Write the configuration by which CRI-O and Podman run the hook for every container.

    Containers without a share are left alone, and those that got it by CDI are checked once.
    """
    given: Settings = ctx.obj
    known = ledger.load(given.paths.state_dir).options.hook_path
    with usage():
        options = Options(hook_path=hook_path or known, hook_stage=hook_stage)
    text = json.dumps(configuration(options), indent=2) + "\n"
    # Of the two usual folders this one is read by Podman 4 as well.
    path = Path(target) if target else given.root / "usr/share/containers/oci/hooks.d/amd-cdi.json"
    if target == "-" or dry_run:
        output.write(text)
        return
    if not target:
        make_directory(path.parent)
    changed = store.export(path.absolute(), text.encode())
    if given.as_json:
        output.document({"path": str(path), "changed": changed})
    else:
        output.lines([f"{'wrote' if changed else 'up to date:'} {path}"])
