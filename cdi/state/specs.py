"""What the specs of a node come to, beside those of others, before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.errors import PermanentError
from cdi.files import unstaged
from cdi.node.gpu import Node
from cdi.plan import names, planner
from cdi.plan.options import Format
from cdi.plan.share import Share
from cdi.spec import registry, renderer, rules, spectext
from cdi.spec.edits import Device, Spec
from cdi.spec.renderer import HostPaths, Rendering
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths


@dataclass(frozen=True, slots=True)
class NodeSpecs:
    """What the specs of a node come to, before anything is written."""

    path: Path
    """Where that of the GPUs goes, or went."""
    node: Node
    host_paths: HostPaths
    ledger: Ledger
    shares: tuple[Share, ...]
    """All that the node offers, also those that cannot be had right now."""
    rendering: Rendering
    devices: Mapping[str, Sequence[Device]]
    """What stands in each spec, by file name."""
    specs: Mapping[str, bytes]
    """The specs by file name."""
    values: Mapping[str, bytes]
    """The files of values that containers of shares and their hooks read, by name."""
    listed: frozenset[str]
    """What lies in the spec directory."""
    stale: frozenset[str]
    """Specs of ours that have to go."""
    warnings: tuple[str, ...]
    changed: bool = False
    """Whether a spec was another one before."""

    @property
    def document(self) -> Spec:
        """All that the node offers, as one spec."""
        return renderer.assemble(self.rendering.devices)

    @property
    def text(self) -> bytes:
        """All that the node offers, as the text of one file."""
        return spectext.encode(self.document, self.ledger.options.format)

    def offers(self, name: str) -> bool:
        """Whether a share is offered."""
        return any(offer.share.name == name for offer in self.rendering.offers)


def offered(node: Node, ledger: Ledger) -> tuple[Share, ...]:
    """Return every share the node offers: those of the ledger, and the static equal ones."""
    options = ledger.options
    return (
        *ledger.shares,
        *planner.split(node, options.split, options.strategies, ledger.shares),
    )


def make(
    node: Node,
    ledger: Ledger,
    paths: Paths,
    own_files: frozenset[str],
    last: NodeSpecs | None = None,
) -> NodeSpecs:
    """Return the specs of a node beside the others in the directory.

    ``own_files`` are the specs of GPUs that are ours, now and before, so that they and the specs of
    pods beside them conflict with nothing. What ``last`` has of the same node, options and paths is
    not rendered again. Raises PermanentError if another file there cannot be read, as its names
    might collide, or if nothing is left to offer.
    """
    options = ledger.options
    host_paths = paths.host_paths
    if last and (last.node, last.ledger.options, last.host_paths) != (node, options, host_paths):
        last = None
    shares = offered(node, ledger)
    known = last.rendering.offers if last else ()
    rendering = renderer.render(node, shares, options, host_paths, known)
    listed = registry.files_in(paths.spec_dir)
    ours = own_files | {offer.file for offer in rendering.offers}
    left = {name for name in listed - ours if _is_left(unstaged(name), own_files)}
    others = registry.load_present(registry.paths_in(paths.spec_dir, listed - ours - left))
    offering, collisions = _without_collisions(rendering, others)
    if collisions and options.on_conflict == "fail":
        raise PermanentError(
            "; ".join(collisions), "remove the other file, or use --on-conflict omit"
        )
    devices = offering.by_file(options.file)
    if not devices[options.file]:
        raise PermanentError(
            "other specs have all names that this node's devices would get: "
            + "; ".join(collisions),
            "remove one of those files",
        )
    specs = _texts(devices, options.format, last)
    stale = (listed & ours) - specs.keys() | {name for name in left if unstaged(name) not in specs}
    return NodeSpecs(
        paths.spec_dir / options.file,
        node,
        host_paths,
        ledger,
        shares,
        offering,
        devices,
        specs,
        _values(offering),
        listed,
        # Runtimes do not look into directories, whatever these are called.
        frozenset([name for name in stale if not _is_directory(paths.spec_dir / name)]),
        (
            *node.warnings,
            *rendering.warnings,
            *_partitions_without_splits(node, ledger),
            *[f"left out: {collision}" for collision in collisions],
        ),
    )


def _texts(
    devices: Mapping[str, Sequence[Device]], form: Format, last: NodeSpecs | None
) -> dict[str, bytes]:
    """Return the specs by file name; those that ``last`` has are not written out again."""
    return {
        file: last.specs[file] if last and last.devices.get(file) == stands else _text(stands, form)
        for file, stands in devices.items()
    }


def _text(devices: Sequence[Device], form: Format) -> bytes:
    """Return the spec of these devices; raises PermanentError if a runtime would refuse it."""
    spec = renderer.assemble(devices)
    for finding in rules.findings(spec):
        raise PermanentError(f"no runtime would load the spec: {finding}", "check the options")
    return spectext.encode(spec, form)


def _values(rendering: Rendering) -> dict[str, bytes]:
    """Return the files of values by name."""
    found = {}
    for held in rendering.held:
        found[f"{held.name}.conf"] = held.values
        found[f"{held.name}.args"] = held.arguments
    return found


def _without_collisions(
    rendering: Rendering, others: list[registry.Entry]
) -> tuple[Rendering, list[str]]:
    """Return the devices whose names no other spec has, and a line for each spec that has some."""
    owners = {
        device["name"]: entry.path
        for entry in others
        if entry.spec["kind"] == renderer.KIND
        for device in entry.spec["devices"]
    }
    if not owners:
        return rendering, []
    collisions: dict[Path, list[str]] = {}
    for device in rendering.devices:
        if (owner := owners.get(device["name"])) is not None:
            collisions.setdefault(owner, []).append(device["name"])
    return rendering.without(owners.keys()), [
        f"{path} already has the {renderer.KIND} devices {', '.join(names)}, and runtimes use "
        "neither of two that have the same name"
        for path, names in collisions.items()
    ]


def _partitions_without_splits(node: Node, ledger: Ledger) -> list[str]:
    """Say where no equal shares are offered, and why."""
    if not ledger.options.split:
        return []
    living: dict[str, list[str]] = {}
    for share in ledger.shares:
        for slice_ in share.slices:
            living.setdefault(slice_.pci, []).append(share.name)
    return [
        f"no equal shares of GPU {gpu.index} where these live: {', '.join(living[gpu.pci])}"
        for gpu in node.gpus
        if gpu.pci in living
    ] + [
        f"no equal shares of GPU {names.label(gpu, partition)}, as it is not known what a part of "
        "it comes to: see amd-cdi topology"
        for gpu in node.gpus
        for partition in gpu.partitions
        if ledger.options.split > 1 and not planner.divisible(partition)
    ]


def _is_left(name: str, own_files: Collection[str]) -> bool:
    """Whether a spec is one of ours that nobody needs: of a pod that is gone, or staged once."""
    return name in own_files or any(names.is_pod_spec(file, name) for file in own_files)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
