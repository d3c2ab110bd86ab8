"""Where node, ledger and spec meet: every change of the node's state goes through ``update``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from cdi import ledger as ledgers
from cdi import names, planner, registry, spec, spectext, usage
from cdi.edits import Spec
from cdi.errors import AmdCdiError, PermanentError
from cdi.files import (
    LOCK_SECONDS,
    Settle,
    at_once,
    lock,
    make_directory,
    names_in,
    staging,
)
from cdi.ledger import Ledger
from cdi.memory import Memory, alone
from cdi.node import Node
from cdi.share import Share

PAST_NS = 4 * 10**9
"""Further back than any filesystem rounds times off, which is two seconds."""

LOCK_FILE = ".amd-cdi.lock"
"""In the state and the spec directory; runtimes read no file of this name."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The places of a node that a command works on."""

    sysroot: Path
    spec_dir: Path
    state_dir: Path
    usage_dir: Path

    def __post_init__(self) -> None:
        for path in (self.state_dir, self.usage_dir):
            # Containers mount files from there, and YAML readers change what is not printable.
            if not str(path).isprintable():
                raise PermanentError(
                    f"a path of printable characters was expected, found {str(path)!r}",
                    "choose another directory",
                )

    @property
    def values_dir(self) -> Path:
        """Where the values files of shares lie."""
        return self.state_dir / "shares"

    @property
    def host_paths(self) -> spec.HostPaths:
        """The places that containers mount, as the host calls them: the sysroot is its root."""
        usage_dir = usage.bounded(self.usage_dir)
        return spec.HostPaths(
            self._on_host(self.values_dir), self._on_host(usage_dir) if usage_dir else None
        )

    def _on_host(self, path: Path) -> Path:
        return Path("/") / (
            path.relative_to(self.sysroot) if path.is_relative_to(self.sysroot) else path
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """What the specs of a node come to, before anything is written."""

    path: Path
    """Where that of the GPUs goes, or went."""
    ledger: Ledger
    shares: tuple[Share, ...]
    """All that the node offers, also those that cannot be had right now."""
    rendering: spec.Rendering
    fresh: tuple[spec.Offer, ...]
    """Offers whose files have to be written, or compared."""
    files: Mapping[str, bytes]
    """Specs that have to be written, or compared, by name."""
    stale: frozenset[str]
    """Specs of ours that have to go."""
    listed: frozenset[str]
    """What lies in the spec directory now."""
    warnings: tuple[str, ...]
    changed: bool = False
    """Whether a spec was another one before."""

    def offers(self, name: str) -> bool:
        """Whether a share is offered; what is new is looked at first."""
        return any(offer.share.name == name for offer in chain(self.fresh, self.rendering.offers))

    @property
    def document(self) -> Spec:
        """All that the node offers, as one spec."""
        return spec.assemble(self.rendering.devices)

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


def draft(
    node: Node, ledger: Ledger, paths: Paths, own_files: frozenset[str], memory: Memory
) -> Draft:
    """Return the specs of a node beside the others in the directory.

    ``own_files`` are the specs of GPUs that are ours, now and before, so that they and the specs of
    pods beside them conflict with nothing. Raises PermanentError if another file there cannot be
    read, as its names might collide, or if nothing is left to offer.
    """
    options = ledger.options
    shares = offered(node, ledger)
    host_paths = paths.host_paths
    offers = memory.offers_for((node, options, host_paths))
    rendering = spec.render(node, shares, options, host_paths, offers)
    listed = memory.listed if memory.listed is not None else registry.files_in(paths.spec_dir)
    ours = rendering.files | own_files
    left = {name for name in listed - ours if _is_left(_unstaged(name), own_files)}
    others = [
        registry.load(path) for path in registry.paths_in(paths.spec_dir, listed - ours - left)
    ]
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
    left_out = _partitions_without_splits(node, ledger)
    return Draft(
        paths.spec_dir / options.file,
        ledger,
        shares,
        offering,
        fresh,
        files,
        (listed & ours) - present | {name for name in left if _unstaged(name) not in present},
        listed,
        (
            *node.warnings,
            *rendering.warnings,
            *left_out,
            *[f"left out: {collision}" for collision in collisions],
        ),
    )


def _fresh(
    offering: spec.Rendering, written: frozenset[spec.Offer], missing_files: frozenset[str]
) -> tuple[spec.Offer, ...]:
    """Return the offers that are new since their files were written, or whose spec is missing."""
    new = set(offering.offers) - written
    if missing_files - {offer.file for offer in new}:
        new |= {offer for offer in offering.offers if offer.file in missing_files}
    return tuple(sorted(new, key=lambda offer: offer.share.name))


def preview(
    paths: Paths, node: Node, change: Callable[[Ledger], Ledger], *, offering: str = ""
) -> Draft:
    """Return what ``update`` would make, without writing anything."""
    before = ledgers.load(paths.state_dir)
    return _checked(paths, node, before, change(before), Memory(), offering)


def update(  # noqa: PLR0913 -- what is changed where, and how to go about it
    paths: Paths,
    node: Node,
    change: Callable[[Ledger], Ledger],
    memory: Memory | None = None,
    *,
    lock_seconds: float = LOCK_SECONDS,
    settle: Settle = at_once,
    confirm: Callable[[Draft], None] | None = None,
    offering: str = "",
) -> Draft:
    """Change the ledger, and make the files of the node what the new ledger says.

    All under the lock of the state directory, and all or nothing: the values of shares, the
    ledger and the spec are written in full before the first of them is put in its place, in this
    order. A crash between leaves a ledger that the next ``generate`` makes the spec of. A process
    that stays passes the same memory each time, and may settle renames behind its answer, so
    that a power failure takes the last renames back. ``confirm`` has the last word, before the
    first file is in its place: nothing is changed if it raises. Raises TemporaryError when another
    process has a lock for ``lock_seconds``, and PermanentError, with nothing changed, if the device
    ``offering`` would be left out, or if the spec would replace one of another kind.
    """
    stays = memory is not None
    memory = memory or Memory()
    _require_apart(paths)
    if not paths.state_dir.is_dir():
        # Directories are made for what will succeed.
        preview(paths, node, change, offering=offering)
    for directory in (paths.spec_dir, paths.state_dir, paths.values_dir):
        make_directory(directory)
    with (
        lock(paths.state_dir, lock_seconds, LOCK_FILE),
        lock(paths.spec_dir, lock_seconds, LOCK_FILE),
    ):
        untouched = bool(memory.stamps) and memory.stamps == _stamps(paths)
        if not untouched:
            memory.written = frozenset()
            memory.listed = None
        before = ledgers.load(paths.state_dir, memory.ledger, untouched=untouched)
        after = change(before)
        made = _checked(paths, node, before, after, memory, offering)
        ledger_path = ledgers.path_in(paths.state_dir)
        document = ledgers.encode(after, memory.lines)
        living = frozenset([share.name for share in made.shares])
        known = memory.living if untouched else None
        stale = _stale_values(paths.values_dir, known, living)
        complete = {_share_of(name) for name in stale if not name.startswith(".")}
        forgotten = complete and complete - {share.name for share in before.shares}
        agreed = partial(confirm, made) if confirm else None
        with staging(settle, agreed, memory.spares if stays else None) as staged:
            held = [offer.held for offer in made.fresh if offer.held is not None]
            for one in held:
                staged.write(paths.values_dir / f"{one.name}.conf", one.values)
                staged.write(paths.values_dir / f"{one.name}.args", one.arguments)
            # Before there are new ones: of two with one device, runtimes would use neither.
            staged.remove([paths.spec_dir / name for name in made.stale])
            if after != before:
                previous = ledger_path.with_name(f"{ledger_path.name}.previous")
                staged.keep(ledger_path, previous)
            staged.write(ledger_path, document)
            written = [
                staged.write(paths.spec_dir / name, text) for name, text in made.files.items()
            ]
            if usage.bounded(paths.usage_dir):
                usage.lay(paths.usage_dir, {one.name: one.gpus for one in held})
        memory.ledger = (document, after)
        memory.keep(made.rendering.offers, living)
        memory.listed = made.listed - made.stale | made.files.keys()
        usage.remove(paths.values_dir, stale)
        if usage.bounded(paths.usage_dir):
            usage.remove(paths.usage_dir, _stale_regions(paths.usage_dir, known, living))
        if stays:
            memory.stamps = _stamp(paths)
    warnings = [
        f"{name} was made on this node and is not in the ledger, as when an earlier one was "
        "restored: a container that runs with it keeps CUs and memory that others may get now"
        for name in sorted(filter(names.is_made, forgotten))
    ]
    changed = any(written) or bool(made.stale)
    return replace(made, changed=changed, warnings=(*made.warnings, *warnings))


def missing(made: Draft, paths: Paths) -> list[str]:
    """Say what containers of shares need and the host has not."""
    if not made.rendering.held:
        return []
    options = made.ledger.options
    lacking = [
        f"{what} is not at {path}, so no container with a share will start; install it, or name "
        f"another place with {flag}"
        for what, path, flag in (
            ("the hook", options.hook_path, "--hook-path"),
            ("the library", options.library_path, "--library-path"),
        )
        # Path.is_file raises for names that are too long, or in folders that are closed to us.
        if not os.path.isfile(paths.sysroot / path.lstrip("/"))  # noqa: PTH113
    ]
    if not usage.bounded(paths.usage_dir):
        lacking.append(
            f"{paths.usage_dir} is no filesystem of its own, so the processes of a share count "
            "their memory in the container's /tmp; mount one there, such as a tmpfs of 64 MiB, and "
            "generate again"
        )
    return lacking


def export(target: Path, data: bytes) -> bool:
    """Write a file whose place is not the spec directory; say whether it was another one before.

    Raises PermanentError for a place in a state directory, which is one that has a ledger.
    """
    place = target.parent.resolve()
    for directory in (place, place.parent):
        if ledgers.path_in(directory).exists():
            raise PermanentError(
                f"{target} lies in {directory}, the state directory of shares",
                "choose another file",
            )
    with lock(target.parent), staging() as staged:
        return staged.write(target, data)


def _checked(  # noqa: PLR0913, PLR0917 -- what is changed where, and from what to what
    paths: Paths, node: Node, before: Ledger, after: Ledger, memory: Memory, offering: str
) -> Draft:
    """Return what a change of the ledger comes to; raises PermanentError if it may not be made."""
    _require_ours(paths.spec_dir / after.options.file, before)
    own_files = frozenset({before.options.file, after.options.file})
    _require_ledger(paths, own_files)
    made = draft(node, after, paths, own_files, memory)
    _require_offer(made, offering)
    return made


def _require_apart(paths: Paths) -> None:
    """Raise PermanentError if the ledger would lie where runtimes read specs."""
    try:
        same = paths.state_dir.samefile(paths.spec_dir)
    except OSError:
        same = paths.state_dir.resolve() == paths.spec_dir.resolve()
    if same:
        raise PermanentError(
            f"{paths.spec_dir} is both the state and the spec directory, where runtimes would "
            "read the ledger as a spec",
            "give another --state-dir",
        )


def _require_ours(target: Path, before: Ledger) -> None:
    """Raise PermanentError if a spec that is not the earlier one is of another kind."""
    if target.name == before.options.file or not target.exists():
        return
    kind = registry.load(target).spec["kind"]
    if kind != spec.KIND:
        raise PermanentError(
            f"no spec but one of {spec.KIND} was expected at {target}, found one of {kind[:80]}",
            "choose another file",
        )


def _require_ledger(paths: Paths, own_files: Iterable[str]) -> None:
    """Raise PermanentError if our spec has users' shares and their ledger is gone, or is elsewhere.

    Without it, what their containers hold would be given away again. Shares of pods come back from
    the annotations of these.
    """
    ledger_path = ledgers.path_in(paths.state_dir)
    if ledger_path.exists():
        return
    for path in sorted(paths.spec_dir / name for name in own_files):
        try:
            devices = registry.load(path).spec["devices"]
        except AmdCdiError:
            # It is missing, or broken and about to be replaced: no runtime has shares from there.
            continue
        shares = [device["name"] for device in devices if names.is_made(device["name"])]
        if shares:
            shown = ", ".join(shares[:5]) + (", …" if len(shares) > 5 else "")
            raise PermanentError(
                f"{path} has {shown}, and the ledger that says what they hold is not at "
                f"{ledger_path}",
                "give the --state-dir that they were made with, restore the ledger, or, if no "
                f"container with one of them runs, remove {path}",
            )


def _require_offer(made: Draft, name: str) -> None:
    """Raise PermanentError if a device, if one is named, is left out."""
    if name and all(device["name"] != name for device in made.rendering.devices):
        reasons = [line for line in made.warnings if name in line]
        raise PermanentError(f"{spec.KIND}={name} cannot be offered: {'; '.join(reasons)}")


def _without_collisions(
    rendering: spec.Rendering, others: list[registry.Entry]
) -> tuple[spec.Rendering, list[str]]:
    """Return the devices whose names no other spec has, and a line for each spec that has some."""
    owners = {
        device["name"]: entry.path
        for entry in others
        if entry.spec["kind"] == spec.KIND
        for device in entry.spec["devices"]
    }
    if not owners:
        return rendering, []
    collisions: dict[Path, list[str]] = {}
    for device in rendering.devices:
        if (owner := owners.get(device["name"])) is not None:
            collisions.setdefault(owner, []).append(device["name"])
    return rendering.without(owners.keys()), [
        f"{path} already has the {spec.KIND} devices {', '.join(names)}, and runtimes use neither "
        "of two that have the same name"
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


def _stale_values(
    directory: Path, known: frozenset[str] | None, living: frozenset[str]
) -> set[str]:
    """Return the files of values whose shares are gone; ``known`` has those that have some."""
    if known is not None:
        return {f"{name}{suffix}" for name in known - living for suffix in (".conf", ".args")}
    return {
        name
        for name in names_in(directory)
        # What was not put in its place is of a process that died, as we have the lock.
        if _is_stale(_share_of(name), living if _unstaged(name) == name else frozenset())
    }


def _stale_regions(
    directory: Path, known: frozenset[str] | None, living: frozenset[str]
) -> set[str]:
    """Return the usage regions whose shares are gone; ``known`` has those that have some."""
    if known is not None:
        return set(known - living)
    regions = names_in(directory) - living
    return {name for name in regions if _is_stale(_unstaged(name), living)}


def _stamped(paths: Paths) -> list[Path]:
    """Return what is changed with every change: the ledger, and where the files of shares lie."""
    places = [ledgers.path_in(paths.state_dir), paths.values_dir, paths.spec_dir]
    return [*places, paths.usage_dir] if usage.bounded(paths.usage_dir) else places


def _stamps(paths: Paths) -> tuple[int, ...]:
    """Return when these were changed last, in ns; nothing if one is missing."""
    try:
        return tuple(path.stat().st_mtime_ns for path in _stamped(paths))
    except OSError:
        return ()


def _stamp(paths: Paths) -> tuple[int, ...]:
    """Give these times of change that they have until another process changes them.

    The clock of filesystems may stand for several milliseconds, in which another process changes
    as much as this one. Seconds that are past come from no clock.
    """
    now = time.time_ns()
    try:
        for path in _stamped(paths):
            os.utime(path, ns=(now, now - PAST_NS))
        return _stamps(paths)
    except OSError:
        # Only its owner may: then they are read anew each time.
        return ()


def _is_stale(name: str, keep: frozenset[str]) -> bool:
    """Whether a file is of a share that is gone; whatever else lies there is somebody's."""
    return names.is_share(name) and name not in keep


def _is_left(name: str, own_files: Collection[str]) -> bool:
    """Whether a spec is one of ours that nobody needs: of a pod that is gone, or staged once."""
    return name in own_files or any(names.is_pod_spec(file, name) for file in own_files)


def _share_of(name: str) -> str:
    """Return the share that a file of values may be of, empty for another file."""
    share, _, suffix = _unstaged(name).rpartition(".")
    return share if suffix in {"conf", "args"} else ""


def _unstaged(name: str) -> str:
    """Return the name that a file gets when it is complete."""
    return name[1:].removesuffix(".new") if name.startswith(".") else name
