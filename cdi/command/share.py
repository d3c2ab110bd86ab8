"""``amd-cdi share``: shares without Kubernetes, for Docker, Podman and nerdctl."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from cdi import cumask
from cdi.command import arguments, output
from cdi.command.arguments import (
    DryRun,
    HookPath,
    NodeHookStage,
    NodeRequire,
    Settings,
)
from cdi.errors import PermanentError
from cdi.node import topology
from cdi.plan import names, planner
from cdi.plan.amount import (
    ALL,
    Amount,
    format_bytes,
    format_mib,
    parse_memory,
    parse_percent,
    parse_scale,
)
from cdi.plan.options import Options
from cdi.plan.planner import NoRoomError
from cdi.plan.share import Share
from cdi.spec import renderer
from cdi.state import ledger, removal, store
from cdi.state.ledger import Ledger
from cdi.state.specs import offered

app = typer.Typer(
    help="Shares without Kubernetes: create, list and remove them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _device(text: str) -> str:
    """Return the device of the share that text names, be it as a device."""
    name = text.removeprefix(f"{renderer.KIND}=share-")
    if name == text and "=" in text:
        raise PermanentError(
            f"a share made by share create was expected, found the device {text[:200]!r}",
            "see: amd-cdi share list",
        )
    return names.share_device(name)


@app.command("create")
def create(
    ctx: typer.Context,
    device: Annotated[
        str,
        typer.Argument(
            parser=arguments.parsed_by(names.share_device),
            metavar="NAME",
            help="Name of the share; its CDI device is share-NAME.",
        ),
    ],
    gpus: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            parser=arguments.parsed_by(names.gpu_name),
            metavar="GPU",
            envvar="AMD_CDI_GPU",
            help="Index, UUID or PCI address of a GPU, with :PARTITION if it is partitioned; "
            "once for each GPU of the share.",
        ),
    ],
    cores: Annotated[
        Amount | None,
        typer.Option(
            parser=arguments.parsed_by(parse_percent),
            metavar="PERCENT",
            envvar="AMD_CDI_CORES",
            help="Percentage of each GPU's CUs, rounded down to whole atoms.",
            show_default="100",
        ),
    ] = None,
    cus: Annotated[
        int | None,
        typer.Option(min=1, envvar="AMD_CDI_CUS", help="Number of CUs of each GPU instead."),
    ] = None,
    memory: Annotated[
        Amount | None,
        typer.Option(
            parser=arguments.parsed_by(parse_memory),
            metavar="SIZE",
            envvar="AMD_CDI_MEMORY",
            help="VRAM of each GPU: 48GiB, 512m, bytes or 25%. As to Docker and Podman, units are "
            "powers of 1024: 48g, 48GB and 48Gi are all 48 GiB.",
            show_default="100%",
        ),
    ] = None,
    memory_scaling: Annotated[
        float,
        typer.Option(
            parser=arguments.parsed_by(parse_scale),
            metavar="FACTOR",
            envvar="AMD_CDI_MEMORY_SCALING",
            help="Book up to this many times the VRAM; above 1, HIP may spill into system memory.",
        ),
    ] = 1.0,
    hook_path: HookPath = None,
    hook_stage: NodeHookStage = None,
    require: NodeRequire = None,
    dry_run: DryRun = False,
) -> None:
    """Reserve a part of one or more GPUs and offer it as a CDI device.

    CUs are rounded down to whole atoms, so that equal parts always fit beside each other; HAMi's
    scheduler rounds up before it books. Where the two differ, the answer says what was asked for
    and what was granted. Creating the same share again changes nothing. What holds shares is the
    same for all of a node: --require and the hook, given here, are for those that are there as
    well; --require and --hook-stage stay until the next generate.
    """
    if cores is not None and cus is not None:
        raise typer.BadParameter("give --cores or --cus, not both")
    if len(set(gpus)) < len(gpus):
        raise typer.BadParameter("name each GPU of the share once with --gpu")
    chosen = {"hook_path": hook_path, "hook_stage": hook_stage, "require": require}
    changes: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    with arguments.usage():
        Options(**changes)
    given: Settings = ctx.obj
    paths = given.paths
    node = topology.read_node(paths.sysroot)
    wanted = Amount(cus, percent=False) if cus is not None else cores or ALL
    wants = [
        planner.Want(*planner.find(node, gpu), cus=wanted, memory=memory or ALL) for gpu in gpus
    ]

    def add(before: Ledger) -> Ledger:
        before = replace(before, options=replace(before.options, **changes))
        present = before.share(device)
        if present is None:
            living = offered(node, before)
            return before.with_share(planner.plan(device, wants, living, memory_scaling))
        if planner.matches(present, wants, memory_scaling):
            return before
        name = device.removeprefix("share-")
        raise PermanentError(
            f"there is another share {name!r}: {'; '.join(_slices(present))}",
            f"remove it first with: amd-cdi share remove {name}",
        )

    change = store.preview if dry_run else store.update
    try:
        made = change(paths, node, add, offering=device)
    except NoRoomError as error:
        raise PermanentError(error.message, _less(error)) from error
    output.warn([*made.warnings, *([] if given.sample or dry_run else store.missing(made, paths))])
    share = next(share for share in made.ledger.shares if share.name == device)
    notes = [*([memory.note] if memory and memory.note else []), *planner.shortfalls(share, wants)]
    if given.as_json:
        output.document({**_fields(share), "notes": notes})
        return
    output.lines(
        [
            f"{'would be ' if dry_run else ''}{renderer.KIND}={share.name}",
            *(
                f"  {line} ({slice_.memory} bytes)"
                for line, slice_ in zip(_slices(share), share.slices, strict=True)
            ),
            *(f"  {note}" for note in notes),
        ]
    )


def _less(error: NoRoomError) -> str:
    """Return what to ask for instead."""
    cus = f"{error.most} CUs with --cus"
    option = f"{format_mib(error.most)} with --memory" if error.memory else cus
    ways = [f"ask for at most {option}"] if error.most else []
    if error.most < error.total:
        ways.append("remove a share")
    return ", or ".join(ways)


@app.command("list")
def list_shares(ctx: typer.Context) -> None:
    """List the shares of this node, of whatever origin."""
    given: Settings = ctx.obj
    shares = ledger.load(given.paths.state_dir).shares
    if given.as_json:
        output.document([_fields(share) for share in shares])
        return
    output.table(
        ("DEVICE", "GPU", "CUS", "MEMORY"),
        [
            (
                f"{renderer.KIND}={share.name}",
                _place(slice_.pci, slice_.partition, slice_.mode),
                f"{slice_.cus.bit_count()} ({cumask.format_cus(slice_.cus)})"
                if slice_.cus
                else "all",
                format_bytes(slice_.memory) if slice_.memory else "all",
            )
            for share in shares
            for slice_ in share.slices
        ],
    )


@app.command("remove")
def remove(
    ctx: typer.Context,
    device: Annotated[
        str,
        typer.Argument(
            parser=arguments.parsed_by(_device),
            metavar="NAME",
            help="Name of the share, or its device as `share list` shows it.",
        ),
    ],
    dry_run: DryRun = False,
) -> None:
    """Give a share back. A container that still runs with it keeps its limits."""
    given: Settings = ctx.obj
    paths = given.paths
    shares = ledger.load(paths.state_dir)
    typed = device.removeprefix("share-")
    if names.is_made(typed) and shares.share(typed) and not shares.share(device):
        device = typed
    change = store.preview if dry_run else store.update
    try:
        node = topology.read_node(paths.sysroot)
        warnings = change(paths, node, lambda before: before.without_share(device)).warnings
    except PermanentError as error:
        removal.give_back(paths, device, dry_run=dry_run)
        warnings = (f"only this share goes from the spec, which cannot be made anew: {error}",)
    output.warn(warnings)
    if given.as_json:
        output.document({"removed": device, "dry_run": dry_run})
    else:
        output.lines([f"{'would remove' if dry_run else 'removed'} {renderer.KIND}={device}"])


def _fields(share: Share) -> dict[str, Any]:
    return {"device": f"{renderer.KIND}={share.name}", **ledger.share_fields(share)}


def _slices(share: Share) -> list[str]:
    return [
        f"GPU {_place(slice_.pci, slice_.partition, slice_.mode)}: {slice_.extent}"
        for slice_ in share.slices
    ]


def _place(pci: str, partition: int, mode: str) -> str:
    return f"{pci}:{partition}" if mode not in {"", "spx"} else pci
