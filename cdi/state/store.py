"""Where node, ledger and spec meet: every change of the node's state goes through ``update``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError
from cdi.files import (
    LOCK_SECONDS,
    Staging,
    lock,
    make_directory,
    names_in,
    remove_files,
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

LOCK_FILE = ".amd-cdi.lock"
"""In the state and the spec directory; runtimes read no file of this name."""


def preview(
    paths: Paths, node: Node, change: Callable[[Ledger], Ledger], *, offering: str = ""
) -> NodeSpecs:
    """Return what ``update`` would make, without writing anything."""
    before = ledgers.load(paths.state_dir)
    return _checked(paths, node, before, change(before), None, offering)


def update(  # noqa: PLR0913 -- what is changed where, and how to go about it
    paths: Paths,
    node: Node,
    change: Callable[[Ledger], Ledger],
    cache: Cache | None = None,
    *,
    lock_seconds: float = LOCK_SECONDS,
    confirm: Callable[[NodeSpecs], None] | None = None,
    offering: str = "",
) -> NodeSpecs:
    """Change the ledger, and make the files of the node what the new ledger says.

    All under the lock of the state directory, and all or nothing: the values of shares, the
    ledger and the specs are written in full before the first of them is put in its place, in this
    order. A crash between leaves a ledger that the next ``generate`` makes the specs of.
    ``confirm`` has the last word, when all is written: nothing is changed if it raises. A process
    that stays passes the same cache each time.

    Raises TemporaryError when another process has a lock for ``lock_seconds``, and PermanentError,
    with nothing changed, if the device ``offering`` would be left out, or if the spec would replace
    one of another kind.
    """
    cache = cache or Cache()
    if not paths.state_dir.is_dir():
        # Directories are made for what will succeed.
        preview(paths, node, change, offering=offering)
    for directory in (paths.spec_dir, paths.state_dir, paths.values_dir):
        make_directory(directory)
    with (
        lock(paths.state_dir, lock_seconds, LOCK_FILE),
        lock(paths.spec_dir, lock_seconds, LOCK_FILE),
    ):
        before = ledgers.load(paths.state_dir, cache.ledger)
        made = _checked(paths, node, before, change(before), cache.made, offering)
        present = names_in(paths.values_dir)
        made = _write(paths, before, made, cache, present, confirm)
        forgotten = _sweep(paths, before, made, present)
    warnings = [
        f"{name} was made on this node and is not in the ledger, as when an earlier one was "
        "restored: a container that runs with it keeps CUs and memory that others may get now"
        for name in sorted(filter(names.is_made, forgotten))
    ]
    return replace(made, warnings=(*made.warnings, *warnings))


def note(paths: Paths, change: Callable[[Ledger], Ledger]) -> None:
    """Change the ledger alone, where there is no node yet to make specs of: the next update does.

    For what is no share: options that the specs are made with.
    """
    make_directory(paths.state_dir)
    with lock(paths.state_dir, name=LOCK_FILE), staging() as staged:
        after = change(ledgers.load(paths.state_dir))
        staged.write(ledgers.path_in(paths.state_dir), ledgers.encode(after))


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
    if not target.name:
        raise PermanentError(f"a file was expected, found {target}", "choose a file")
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
    last: NodeSpecs | None,
    offering: str,
) -> NodeSpecs:
    """Return what a change of the ledger comes to; raises PermanentError if it may not be made."""
    _require_ours(paths.spec_dir / after.options.file, before)
    own_files = frozenset({before.options.file, after.options.file})
    _require_ledger(paths, own_files)
    made = specs.make(node, after, paths, own_files, last)
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


def _write(  # noqa: PLR0913, PLR0917 -- what comes where, in place of what
    paths: Paths,
    before: Ledger,
    made: NodeSpecs,
    cache: Cache,
    present: Collection[str],
    confirm: Callable[[NodeSpecs], None] | None,
) -> NodeSpecs:
    """Write what differs, have it confirmed, and put it in its place; say whether a spec did."""
    known_specs, known_values = cache.known(before)
    document = ledgers.encode(made.ledger)
    with staging() as staged:
        _stage(staged, paths.values_dir, made.values, known_values, present)
        # Before there are new ones: of two with one device, runtimes would use neither.
        staged.remove([paths.spec_dir / name for name in made.stale])
        _stage_ledger(staged, paths.state_dir, document, changed=made.ledger != before)
        changed = _stage(staged, paths.spec_dir, made.specs, known_specs, made.listed)
        _lay_regions(paths.usage_dir, before, made)
        if confirm is not None:
            confirm(made)
        # From here on files are replaced, of which a failure may leave some as they were.
        cache.intact = False
    cache.keep(document, made)
    return replace(made, changed=changed or bool(made.stale))


def _stage(
    staged: Staging,
    directory: Path,
    files: Mapping[str, bytes],
    known: Mapping[str, bytes],
    present: Collection[str],
) -> bool:
    """Stage the files that are not known to be there; say whether one was another before."""
    doubtful = [name for name in files if name not in present or known.get(name) != files[name]]
    written = [staged.write(directory / name, files[name]) for name in doubtful]
    return any(written)


def _stage_ledger(staged: Staging, state_dir: Path, document: bytes, *, changed: bool) -> None:
    """Stage the ledger; if it has changed, the earlier one stays beside it."""
    path = ledgers.path_in(state_dir)
    if changed:
        staged.keep(path, path.with_name(f"{path.name}.previous"))
    staged.write(path, document)


def _lay_regions(directory: Path, before: Ledger, made: NodeSpecs) -> None:
    """Let each share that is held to something have a usage region, if there may be any."""
    if not usage.bounded(directory):
        return
    # One may be left of an update that came to nothing, whose share may have been of other GPUs.
    new = set(made.ledger.shares) - set(before.shares)
    remove_files(directory, [share.name for share in new])
    usage.lay(directory, {held.name: held.gpus for held in made.rendering.held})


def _sweep(paths: Paths, before: Ledger, made: NodeSpecs, present: set[str]) -> set[str]:
    """Remove the files of shares that are gone; return those that the ledger did not know of."""
    living = {share.name for share in made.shares}
    gone = set()
    for name in present - made.values.keys():
        share = _share_of(unstaged(name))
        # What was not put in its place is of a process that died, as we have the lock.
        half = unstaged(name) != name
        if names.is_share(share) and (half or share not in living):
            remove_files(paths.values_dir, [name])
            gone |= set() if half else {share}
    if usage.bounded(paths.usage_dir):
        usage.sweep(paths.usage_dir, living)
    return gone - {share.name for share in before.shares}


def _share_of(name: str) -> str:
    """Return the share that a file of values may be of, empty for another file."""
    share, _, suffix = name.rpartition(".")
    return share if suffix in {"conf", "args"} else ""
