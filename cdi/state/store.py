"""Where node, ledger and spec meet: every change of the node's state goes through ``update``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError
from cdi.files import (
    LOCK_SECONDS,
    Settle,
    at_once,
    lock,
    make_directory,
    names_in,
    staging,
    unstaged,
)
from cdi.node.gpu import Node
from cdi.plan import names
from cdi.spec import registry, renderer
from cdi.state import ledger as ledgers
from cdi.state import specs, usage
from cdi.state.cache import Cache
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs

PAST_NS = 4 * 10**9
"""Further back than any filesystem rounds times off, which is two seconds."""

LOCK_FILE = ".amd-cdi.lock"
"""In the state and the spec directory; runtimes read no file of this name."""


def preview(
    paths: Paths, node: Node, change: Callable[[Ledger], Ledger], *, offering: str = ""
) -> NodeSpecs:
    """Return what ``update`` would make, without writing anything."""
    before = ledgers.load(paths.state_dir)
    return _checked(paths, node, before, change(before), Cache(), offering, None)


def update(  # noqa: PLR0913 -- what is changed where, and how to go about it
    paths: Paths,
    node: Node,
    change: Callable[[Ledger], Ledger],
    memory: Cache | None = None,
    *,
    lock_seconds: float = LOCK_SECONDS,
    settle: Settle = at_once,
    confirm: Callable[[NodeSpecs], None] | None = None,
    offering: str = "",
) -> NodeSpecs:
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
    memory = memory or Cache()
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
        listed = memory.listed_at(memory.stamps) if untouched else None
        if not untouched:
            memory.written = frozenset()
            memory.forget()
        before = ledgers.load(paths.state_dir, memory.ledger, untouched=untouched)
        after = change(before)
        made = _checked(paths, node, before, after, memory, offering, listed)
        ledger_path = ledgers.path_in(paths.state_dir)
        document = ledgers.encode(after, memory.lines)
        living = frozenset([share.name for share in made.shares])
        known = memory.living if untouched else None
        stale = _stale_values(paths.values_dir, known, living)
        complete = {_share_of(name) for name in stale if not name.startswith(".")}
        forgotten = complete and complete - {share.name for share in before.shares}
        agreed = partial(confirm, made) if confirm else None
        settling = partial(_settle_and_list, settle, memory, paths) if stays else settle
        with staging(settling, agreed, memory.spares if stays else None) as staged:
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
                # Of an update that came to nothing, whose share may have been of other GPUs.
                usage.remove(
                    paths.usage_dir, [one.name for one in held if _comes(one.name, before, after)]
                )
                usage.lay(paths.usage_dir, {one.name: one.gpus for one in held})
        memory.ledger = (document, after)
        memory.keep(made.rendering.offers, living)
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


def missing(made: NodeSpecs, paths: Paths) -> list[str]:
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
    paths: Paths,
    node: Node,
    before: Ledger,
    after: Ledger,
    memory: Cache,
    offering: str,
    listed: frozenset[str] | None,
) -> NodeSpecs:
    """Return what a change of the ledger comes to; raises PermanentError if it may not be made."""
    _require_ours(paths.spec_dir / after.options.file, before)
    own_files = frozenset({before.options.file, after.options.file})
    _require_ledger(paths, own_files)
    made = specs.make(node, after, paths, own_files, memory, listed)
    _require_offer(made, offering)
    return made


def _require_ours(target: Path, before: Ledger) -> None:
    """Raise PermanentError if a spec that is not the earlier one is of another kind."""
    if target.name == before.options.file or not target.exists():
        return
    kind = registry.load(target).spec["kind"]
    if kind != renderer.KIND:
        raise PermanentError(
            f"no spec but one of {renderer.KIND} was expected at {target}, found one of "
            f"{kind[:80]}",
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


def _require_offer(made: NodeSpecs, name: str) -> None:
    """Raise PermanentError if a device, if one is named, is left out."""
    if name and all(device["name"] != name for device in made.rendering.devices):
        reasons = [line for line in made.warnings if name in line]
        raise PermanentError(f"{renderer.KIND}={name} cannot be offered: {'; '.join(reasons)}")


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
        if _is_stale(_share_of(name), living if unstaged(name) == name else frozenset())
    }


def _stale_regions(
    directory: Path, known: frozenset[str] | None, living: frozenset[str]
) -> set[str]:
    """Return the usage regions whose shares are gone; ``known`` has those that have some."""
    if known is not None:
        return set(known - living)
    regions = names_in(directory) - living
    return {name for name in regions if _is_stale(unstaged(name), living)}


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


def _settle_and_list(settle: Settle, memory: Cache, paths: Paths, task: Callable[[], None]) -> None:
    """Settle, and list the spec directory for the next update, if that finds it with these stamps.

    Others write there without our lock. What they did before the stamps is in the list, as it is
    made after them, and what they do later changes them.
    """

    def settle_and_list() -> None:
        task()
        stamps = memory.stamps
        memory.listed = (stamps, registry.files_in(paths.spec_dir))

    settle(settle_and_list)


def _comes(name: str, before: Ledger, after: Ledger) -> bool:
    """Whether a share comes into the ledger, or has another number of GPUs than it had."""
    old, new = before.share(name), after.share(name)
    return new is not None and (old is None or len(old.slices) != len(new.slices))


def _is_stale(name: str, keep: frozenset[str]) -> bool:
    """Whether a file is of a share that is gone; whatever else lies there is somebody's."""
    return names.is_share(name) and name not in keep


def _share_of(name: str) -> str:
    """Return the share that a file of values may be of, empty for another file."""
    share, _, suffix = unstaged(name).rpartition(".")
    return share if suffix in {"conf", "args"} else ""
