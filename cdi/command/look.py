"""Commands that look and change nothing: list, show, validate, diff, inject and topology."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cdi.command import arguments, output
from cdi.command.arguments import Settings
from cdi.errors import PermanentError
from cdi.node import topology
from cdi.node.gpu import Gpu, Node, Partition
from cdi.plan.amount import format_memory
from cdi.plan.names import label
from cdi.spec import difference, registry, renderer, spectext, verdict
from cdi.spec.edits import ContainerEdits
from cdi.state import ledger, store
from cdi.state.specs import NodeSpecs, offered

DEVICE = re.compile(
    r"([a-z][\w.-]*/[a-z][\w.-]*=)?[a-z0-9]([\w.:-]*[a-z0-9])?", re.IGNORECASE | re.ASCII
)
"""A device's name, with its kind or without."""


def _qualified(text: str) -> str:
    """Return the qualified name of a device; raises PermanentError for what none is called."""
    if not DEVICE.fullmatch(text):
        raise PermanentError(
            "a device goes by KIND=NAME, or by its name if it is one of "
            f"{renderer.KIND}, found {text[:200]!r}",
            f"give for example {renderer.KIND}=0, or just 0",
        )
    return text if "=" in text else f"{renderer.KIND}={text}"


Devices = Annotated[
    list[str],
    typer.Argument(
        parser=arguments.parsed_by(_qualified),
        metavar="DEVICE...",
        help=f"A name such as {renderer.KIND}=0, or just 0.",
    ),
]


def list_devices(ctx: typer.Context) -> None:
    """List the CDI devices that containers can ask for, of this and other kinds."""
    given: Settings = ctx.obj
    directories = given.spec_dirs
    entries, skipped = registry.load_all(directories)
    if not entries:
        skipped.append(f"no CDI spec in {' or '.join(map(str, directories))}")
    rivals = registry.rivals(entries)
    output.warn([*skipped, *(f"{path}: {line}" for path in rivals for line in rivals[path])])
    names = list(dict.fromkeys(name for entry in entries for name in entry.devices))
    if given.as_json:
        output.document(names)
    else:
        output.lines(names)


def show(ctx: typer.Context, devices: Devices) -> None:
    """Show everything a container gets that asks for these devices.

    The exit status is 1 if the hook would refuse the container, as of shares it takes one alone.
    """
    given: Settings = ctx.obj
    edits, refusals = _edits(given, devices)
    if given.as_json:
        output.document({**edits, **({"refused": refusals} if refusals else {})})
    else:
        output.lines(f"# {line}" for share in verdict.told(edits) for line in share.lines)
        output.write(spectext.yaml_of(edits))
    if refusals:
        raise PermanentError("; ".join(refusals), "give the container one share and no other GPU")


def validate(
    ctx: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...", help="Specs to check; by default all in the spec directories."
        ),
    ] = None,
) -> None:
    """Say everything that would keep a runtime from loading specs."""
    from cdi.spec import validation

    given: Settings = ctx.obj
    directories = given.spec_dirs
    paths = files or [path for folder in directories for path in registry.paths_in(folder)]
    if not paths:
        output.warn([f"no CDI spec in {' or '.join(map(str, directories))}"])
    findings: dict[str, list[str]] = {}
    entries = []
    for path in paths:
        try:
            findings[str(path)] = list(validation.findings(registry.parse(path)))
            if not findings[str(path)]:
                entries.append(registry.load(path))
        except PermanentError as error:
            findings[str(path)] = [str(error).removeprefix(f"{path} ")]
    for path, lines in registry.rivals(entries).items():
        findings[str(path)] += lines
    if given.as_json:
        output.document(findings)
    else:
        output.lines(
            f"{path}: {finding}"
            for path, found in findings.items()
            for finding in (found or ["valid"])
        )
    if any(findings.values()):
        raise typer.Exit(1)


def diff(ctx: typer.Context) -> None:
    """Say what a refresh would change in the spec of this node; exit 1 if anything."""
    given: Settings = ctx.obj
    paths = given.paths
    made = store.preview(paths, topology.read_node(paths.sysroot), lambda before: before)
    output.warn(made.warnings)
    if show_difference(made.path, made, given.as_json):
        raise typer.Exit(1)


def show_difference(path: Path, made: NodeSpecs, as_json: bool) -> bool:
    """Print what sets the file apart from what would replace it; say if anything."""
    entries, broken = registry.load_node(path)
    common = next((entry.spec for entry in entries if entry.path == path), made.document)
    devices = [device for entry in entries for device in entry.spec["devices"]]
    found = difference.compare({**common, "devices": devices}, made.document)
    if as_json:
        output.document({"path": str(path), **asdict(found)})
    elif found or broken:
        output.lines([f"{path}: {'; '.join(broken)}".removesuffix(" "), *found.lines])
    else:
        output.lines([f"{path} is up to date"])
    return bool(found or broken)


def inject(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG.json", help="An OCI configuration.")],
    devices: Devices,
) -> None:
    """Print what a runtime makes of an OCI configuration when it injects devices."""
    from cdi.spec import inject as injection

    given: Settings = ctx.obj
    edits, refusals = _edits(given, devices)
    output.warn(refusals)
    document = registry.parse(config)
    if not isinstance(document, dict):
        raise PermanentError(
            f"{config} is no OCI configuration: an object was expected",
            "give a config.json of a container",
        )
    output.document(injection.inject(document, edits, given.root))


def show_topology(
    ctx: typer.Context,
    svg: Annotated[
        Path | None, typer.Option(envvar="AMD_CDI_SVG", help="Draw the pictures into this file.")
    ] = None,
) -> None:
    """Show the GPUs of this node, and who has which of their compute units."""
    from cdi.command import picture

    given: Settings = ctx.obj
    paths = given.paths
    node = topology.read_node(paths.sysroot)
    output.warn([*node.warnings, *map(str, node.unusable)])
    shares = offered(node, ledger.load(paths.state_dir))
    pictures = [
        picture.draw(gpu, partition, shares) for gpu in node.gpus for partition in gpu.partitions
    ]
    if svg is not None:
        store.export(svg.absolute(), picture.to_svg(pictures).encode())
    if given.as_json:
        output.document(_document(node))
        return
    output.table(
        ("GPU", "PCI", "NAME", "GFX", "CUS", "ATOM", "MEMORY", "NUMA", "MODE", "NODES", "UUID"),
        [_row(gpu, partition) for gpu in node.gpus for partition in gpu.partitions],
    )
    colour = sys.stdout.isatty()
    output.lines(f"\n{picture.to_text(drawn, colour).rstrip()}" for drawn in pictures)


def _row(gpu: Gpu, partition: Partition) -> tuple[str, ...]:
    card = f"card{partition.card_minor} " if partition.card_minor is not None else ""
    return (
        label(gpu, partition),
        gpu.pci,
        gpu.product,
        partition.gfx or "unknown",
        str(partition.cus or "unknown"),
        str(partition.atom or "unknown"),
        format_memory(partition),
        "-" if gpu.numa_node is None else str(gpu.numa_node),
        "/".join(mode for mode in (gpu.compute_mode, gpu.memory_mode) if mode) or "-",
        f"{card}renderD{partition.render_minor}",
        gpu.uuid or "-",
    )


def _document(node: Node) -> dict[str, Any]:
    return {
        "gpus": [
            {
                **asdict(gpu),
                "uuid": gpu.uuid,
                "rocr_id": gpu.rocr_id,
                "memory_bytes": gpu.memory_bytes,
                "partitions": [
                    {
                        **asdict(partition),
                        "name": label(gpu, partition),
                        "gfx": partition.gfx,
                        "atom": partition.atom,
                    }
                    for partition in gpu.partitions
                ],
            }
            for gpu in node.gpus
        ],
        "unusable": [asdict(one) for one in node.unusable],
        "warnings": list(node.warnings),
    }


def _edits(given: Settings, devices: list[str]) -> tuple[ContainerEdits, list[str]]:
    """Return what a container gets that asks for devices, and why the hook refuses it.

    Raises PermanentError if no runtime would load their specs.
    """
    from cdi.spec import validation

    entries, skipped = registry.load_all(given.spec_dirs)
    output.warn(skipped)
    names = list(dict.fromkeys(devices))
    found = []
    for name in names:
        entry, device = registry.find(entries, name)
        # The other devices need not be checked: a large spec would take seconds.
        for finding in validation.findings({**entry.spec, "devices": [device]}):
            raise PermanentError(
                f"no runtime would load {entry.path}: {finding}",
                f"see: amd-cdi validate {entry.path}",
            )
        found.append(device)
    merged = registry.edits_for(entries, names)
    return merged, verdict.refusals(found, merged, given.root)
