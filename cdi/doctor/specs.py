"""The ledger and the specs: what is offered, whether it is what it should be, and by whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor.finding import Finding
from cdi.errors import AmdCdiError
from cdi.node.gpu import Node
from cdi.plan import names
from cdi.spec import difference, registry, renderer, validation
from cdi.state import ledger as ledgers
from cdi.state import store
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths

MAX_LINES = 5
"""Of a kind that are told."""


@dataclass(frozen=True, slots=True)
class Specs:
    """What lies in the spec directories, beside what should."""

    path: Path
    """The spec of the GPUs."""
    version: str
    """What it declares, empty where there is none."""
    invalid: tuple[str, ...]
    """Why runtimes would not load it."""
    outdated: tuple[str, ...]
    """What a refresh would change."""
    skipped: tuple[str, ...]
    """Other files that runtimes skip."""
    rivals: tuple[str, ...]
    """What other files have the same devices, or are of the same kind."""
    reason: str = ""
    """Why it is not known what should be there."""


def read_ledger(state_dir: Path) -> tuple[Ledger, str]:
    """Return the ledger, and why it cannot be read, for which an empty one stands in."""
    try:
        return ledgers.load(state_dir), ""
    except AmdCdiError as error:
        return Ledger(), str(error)


def read(paths: Paths, directories: Sequence[Path], ledger: Ledger, node: Node | None) -> Specs:
    """Read the specs of a machine."""
    path = paths.spec_dir / ledger.options.file
    entries, skipped = registry.load_all(directories)
    own = next((entry for entry in entries if entry.path == path), None)
    invalid: list[str] = []
    outdated: list[str] = []
    reason = ""
    if own is not None:
        invalid = list(validation.findings(own.spec))
    if own is not None and node is not None:
        try:
            made = store.preview(paths, node, lambda before: before)
            nodes, broken = registry.load_node(path)
            devices = [device for entry in nodes for device in entry.spec["devices"]]
            found = difference.compare({**own.spec, "devices": devices}, made.document)
            outdated = [*found.lines, *broken]
        except AmdCdiError as error:
            reason = str(error)
    rivals = [
        f"{file}: {line}" for file, lines in registry.rivals(entries).items() for line in lines
    ]
    rivals += [
        f"{entry.path} has devices of the kind {renderer.KIND} as well"
        for entry in entries
        if entry.spec["kind"] == renderer.KIND
        and entry.path != path
        and not names.is_pod_spec(path.name, entry.path.name)
        and not any(str(entry.path) in line for line in rivals)
    ]
    version = str(own.spec.get("cdiVersion", "")) if own else ""
    return Specs(
        path, version, tuple(invalid), tuple(outdated), tuple(skipped), tuple(rivals), reason
    )


def findings(specs: Specs, ledger: Ledger, broken: str) -> Iterator[Finding]:
    """Yield what follows, with a ledger that may be broken for a reason."""
    if broken:
        yield Finding(
            "fails",
            "the ledger cannot be read",
            broken,
            "no share is made or removed, and no spec is written anew",
            "do as it says",
        )
    if not specs.version:
        yield Finding(
            "fails",
            "there is no spec of this node",
            f"no CDI spec at {specs.path}",
            "runtimes know no device of this node",
            "amd-cdi generate",
        )
    if specs.invalid:
        yield Finding(
            "fails",
            "the spec is not valid",
            _some(specs.invalid),
            "runtimes load none of its devices",
            "amd-cdi generate",
        )
    if specs.outdated:
        yield Finding(
            "less",
            "the spec is not what it should be",
            _some(specs.outdated),
            "containers get what GPUs and shares were before, or do not start",
            "amd-cdi generate, and let it run at each boot",
        )
    if specs.rivals:
        yield Finding(
            "less",
            f"others offer {renderer.KIND} devices as well",
            _some(specs.rivals),
            "of two devices of one name runtimes use neither, and a container that gets one of "
            "theirs beside a share is refused",
            "remove their file, such as amd-ctk's amd.json, and generate again",
        )
    if specs.skipped:
        yield Finding(
            "less",
            "runtimes skip a spec",
            _some(specs.skipped),
            "its devices cannot be had",
            "correct it, or move it away",
        )
    if specs.reason:
        yield Finding(
            "less", "whether the spec is up to date is not known", specs.reason, "", "do as it says"
        )
    elif specs.version and not (broken or specs.invalid or specs.outdated):
        yield Finding(
            "works",
            "the spec is there",
            f"{specs.path}, version {specs.version}, shares: {len(ledger.shares)}",
        )


def _some(lines: Sequence[str]) -> str:
    """Return the first lines, which say it all where there are many."""
    rest = f" and {len(lines) - MAX_LINES} more" if lines[MAX_LINES:] else ""
    return "; ".join(lines[:MAX_LINES]) + rest
