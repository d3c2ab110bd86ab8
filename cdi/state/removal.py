"""Taking things away without knowing the node: one share, or all that was ever written.

Both work where the driver is unloaded, a GPU is gone or sysfs is hidden, which is when people want
to be rid of things.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError
from cdi.files import LOCK_SECONDS, lock, names_in, os_error, staging, sync_directory, unstaged
from cdi.plan import names
from cdi.plan.options import SPEC_FILE
from cdi.spec import registry, renderer, spectext
from cdi.state import ledger as ledgers
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.store import LOCK_FILE

VALUES = (".conf", ".args")
"""What the files of a share's values end in."""


@dataclass(frozen=True, slots=True)
class Written:
    """All that was written to the directories of a node."""

    files: tuple[Path, ...]
    """In the order in which they can go: the ledger, by which the others are known, is last."""
    shares: tuple[str, ...]
    """Those that live."""


def find(paths: Paths, ledger: Ledger | None) -> Written:
    """Return what was written to these directories, and nothing of what others wrote there.

    Without a ledger, specs under the usual name are known by their heading, and shares by them.
    """
    main = ledger.options.file if ledger else SPEC_FILE
    specs, shares = [], set()
    for path in _in(paths.spec_dir):
        name = unstaged(path.name)
        if name != main and not names.is_pod_spec(main, name):
            continue
        if path.name != name:
            specs.append(path)
        elif _is_ours(path, known=ledger is not None):
            specs.append(path)
            shares |= _shares_in(path)
    living = [share.name for share in ledger.shares] if ledger else sorted(shares)
    regions = [path for path in _in(paths.usage_dir) if names.is_share(unstaged(path.name))]
    values = [
        path
        for path in _in(paths.values_dir)
        if unstaged(path.name).endswith(VALUES) and names.is_share(Path(unstaged(path.name)).stem)
    ]
    document = ledgers.path_in(paths.state_dir)
    earlier = f"{document.name}.previous"
    staged = [path for path in _in(paths.state_dir) if path.name != unstaged(path.name)]
    state = [
        *(path for path in staged if unstaged(path.name) in {document.name, earlier}),
        *(document.with_name(earlier), document),
        *(directory / LOCK_FILE for directory in (paths.spec_dir, paths.state_dir)),
    ]
    found = [*specs, *regions, *values, *state]
    return Written(tuple(path for path in found if _is_file(path)), tuple(living))


def remove_all(paths: Paths, *, force: bool = False, dry_run: bool = False) -> Written:
    """Remove all that was written to the directories of a node, and return it.

    Raises PermanentError if shares live, or if none can be known of as the ledger is damaged,
    unless ``force`` says that no container has one. Who is killed meanwhile runs it again.
    """
    if not find(paths, _ledger(paths, force=force)).files:
        # Else the locks would be made, and be all there is.
        return Written((), ())
    with _locked(paths, dry_run=dry_run):
        written = find(paths, _ledger(paths, force=force))
        if written.shares and not force:
            shown = ", ".join(written.shares[:10]) + (", …" if written.shares[10:] else "")
            raise PermanentError(
                f"nothing is removed while shares live, and these do: {shown}",
                "remove them with amd-cdi share remove, or the pods they are of; or use --force",
            )
        if dry_run:
            return written
        for path in written.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise os_error("remove", path, error) from error
        for directory in (paths.spec_dir, paths.state_dir):
            if directory.is_dir():
                sync_directory(directory)
        for directory in (paths.values_dir, paths.state_dir):
            # Whatever else lies there is somebody's.
            with suppress(OSError):
                directory.rmdir()
    return written


def give_back(paths: Paths, device: str, *, dry_run: bool = False) -> None:
    """Take a share out of the ledger, and its device out of the spec, which stays as it is else.

    Raises PermanentError if there is no such share.
    """
    with _locked(paths, dry_run=dry_run):
        before = ledgers.load(paths.state_dir)
        after = before.without_share(device)
        if dry_run:
            return
        document = ledgers.path_in(paths.state_dir)
        main = paths.spec_dir / after.options.file
        with staging() as staged:
            staged.keep(document, document.with_name(f"{document.name}.previous"))
            staged.write(document, ledgers.encode(after))
            text = _without(main, device, after.options.format)
            if text:
                staged.write(main, text)
            elif text is not None:
                staged.remove([main])
        values = [paths.values_dir / f"{device}{suffix}" for suffix in VALUES]
        for path in (*values, paths.usage_dir / device):
            with suppress(OSError):
                path.unlink()


def _without(path: Path, device: str, form: str) -> bytes | None:
    """Return the text of a spec without a device: empty for one without any, None for the same."""
    try:
        spec = registry.load(path).spec
    except AmdCdiError:
        # Missing, or one that no runtime reads.
        return None
    left = [entry for entry in spec["devices"] if entry["name"] != device]
    if len(left) == len(spec["devices"]):
        return None
    return spectext.encode({**spec, "devices": left}, form) if left else b""


def _ledger(paths: Paths, *, force: bool) -> Ledger | None:
    """Return the ledger, None if there is none, or none that can be read."""
    if not ledgers.path_in(paths.state_dir).exists():
        return None
    try:
        return ledgers.load(paths.state_dir)
    except PermanentError as error:
        if force:
            return None
        raise PermanentError(
            f"nothing is removed while it is not known which shares live: {error.message}",
            f"{error.hint}; or use --force",
        ) from error


def _is_ours(path: Path, *, known: bool) -> bool:
    """Whether a spec was written here: by its name, if the ledger says it, or else its heading."""
    try:
        if not known:
            return path.read_bytes().startswith(spectext.HEADING.encode())
        return registry.load(path).spec["kind"] == renderer.KIND
    except OSError:
        return False
    except AmdCdiError:
        # Damaged, and under the name of ours.
        return True


def _shares_in(path: Path) -> set[str]:
    try:
        found = {device["name"] for device in registry.load(path).spec["devices"]}
    except AmdCdiError:
        return set()
    return {name for name in found if names.is_made(name) or names.is_of_pod(name)}


def _in(directory: Path) -> Iterable[Path]:
    try:
        return [directory / name for name in sorted(names_in(directory))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise os_error("look into", directory, error) from error


def _is_file(path: Path) -> bool:
    return os.path.lexists(path) and (path.is_symlink() or not path.is_dir())


@contextmanager
def _locked(paths: Paths, *, dry_run: bool) -> Iterator[None]:
    """Hold the locks of the directories that are there, as every writer does."""
    with ExitStack() as locks:
        for directory in (paths.state_dir, paths.spec_dir):
            if directory.is_dir() and not dry_run:
                locks.enter_context(lock(directory, LOCK_SECONDS, LOCK_FILE))
        yield
