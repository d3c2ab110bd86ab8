"""What the specs of a node come to, beside those of others, before anything is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cdi.errors import PermanentError
from cdi.files import unstaged
from cdi.node.gpu import Node
from cdi.plan import names, planner
from cdi.plan.share import Share
from cdi.spec import registry, renderer, spectext
from cdi.spec.edits import Spec
from cdi.state.cache import Cache, alone
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths


@dataclass(frozen=True, slots=True)
class NodeSpecs:
    """What the specs of a node come to, before anything is written."""

    path: Path
    """Where that of the GPUs goes, or went."""
    ledger: Ledger
    shares: tuple[Share, ...]
    """All that the node offers, also those that cannot be had right now."""
    rendering: renderer.Rendering
    fresh: tuple[renderer.Offer, ...]
    """Offers whose files have to be written, or compared."""
    files: Mapping[str, bytes]
    """Specs that have to be written, or compared, by name."""
    stale: frozenset[str]
    """Specs of ours that have to go."""
    warnings: tuple[str, ...]
    changed: bool = False
    """Whether a spec was another one before."""

    def offers(self, name: str) -> bool:
        """Whether a share is offered; what is new is looked at first."""
        return any(offer.share.name == name for offer in chain(self.fresh, self.rendering.offers))

    @property
    def document(self) -> Spec:
        """All that the node offers, as one spec."""
        return renderer.assemble(self.rendering.devices)

    @property
    def text(self) -> bytes:
        """All that the node offers, as the text of one file."""
        return spectext.encode(self.document, self.ledger.options.format)


def offered(node: Node, ledger: Ledger) -> tuple[Share, ...]:
    """Return every share the node offers: those of the ledger, and the static equal ones."""
    options = ledger.options
    return (
        *ledger.shares,
        *planner.split(node, options.split, options.strategies, ledger.shares),
    )


def make(  # noqa: PLR0913, PLR0917 -- what is rendered, and beside what
    node: Node,
    ledger: Ledger,
    paths: Paths,
    own_files: frozenset[str],
    memory: Cache,
    listed: frozenset[str] | None = None,
) -> NodeSpecs:
    """Return the specs of a node beside the others in the directory.

    ``own_files`` are the specs of GPUs that are ours, now and before, so that they and the specs of
    pods beside them conflict with nothing; ``listed`` is what lies there, if that is known. Raises
    PermanentError if another file there cannot be read, as its names might collide, or if nothing
    is left to offer.
    """
    options = ledger.options
    shares = offered(node, ledger)
    host_paths = paths.host_paths
    offers = memory.offers_for((node, options, host_paths))
    rendering = renderer.render(node, shares, options, host_paths, offers)
    if listed is None:
        listed = registry.files_in(paths.spec_dir)
    ours = rendering.files | own_files
    left = {name for name in listed - ours if _is_left(unstaged(name), own_files)}
    others = registry.load_present(registry.paths_in(paths.spec_dir, listed - ours - left))
    offering, collisions = _without_collisions(rendering, others)
    if collisions and options.on_conflict == "fail":
        raise PermanentError(
            "; ".join(collisions), "remove the other file, or use --on-conflict omit"
        )
    static = offering.static(options.file)
    if not static:
        raise PermanentError(
            "other specs have all names that this node's devices would get: "
            + "; ".join(collisions),
            "remove one of those files",
        )
    present = offering.files | {options.file}
    fresh = _fresh(offering, memory.written, present - listed)
    files = {options.file: memory.text_of(static, options.format)}
    files |= {
        offer.file: alone(offer.device, options.format)
        for offer in fresh
        if offer.file != options.file
    }
    stale = (listed & ours) - present | {name for name in left if unstaged(name) not in present}
    left_out = _partitions_without_splits(node, ledger)
    return NodeSpecs(
        paths.spec_dir / options.file,
        ledger,
        shares,
        offering,
        fresh,
        files,
        # Runtimes do not look into directories, whatever these are called.
        frozenset([name for name in stale if not _is_directory(paths.spec_dir / name)]),
        (
            *node.warnings,
            *rendering.warnings,
            *left_out,
            *[f"left out: {collision}" for collision in collisions],
        ),
    )


def _fresh(
    offering: renderer.Rendering, written: frozenset[renderer.Offer], missing_files: frozenset[str]
) -> tuple[renderer.Offer, ...]:
    """Return the offers that are new since their files were written, or whose spec is missing."""
    new = set(offering.offers) - written
    if missing_files - {offer.file for offer in new}:
        new |= {offer for offer in offering.offers if offer.file in missing_files}
    return tuple(sorted(new, key=lambda offer: offer.share.name))


def _without_collisions(
    rendering: renderer.Rendering, others: list[registry.Entry]
) -> tuple[renderer.Rendering, list[str]]:
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
    """Say where no equal shares are offered because another share lives there."""
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
    ]


def _is_left(name: str, own_files: Collection[str]) -> bool:
    """Whether a spec is one of ours that nobody needs: of a pod that is gone, or staged once."""
    return name in own_files or any(names.is_pod_spec(file, name) for file in own_files)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
