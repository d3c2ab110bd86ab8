"""What installing and removing come to, one step after the other.

Steps are found out before the first is taken, so that they can be shown instead. Only what is not
there yet is a step. A process that dies between two leaves the rest to the next one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError, TemporaryError
from cdi.files import make_directory, names_in, os_error, read_bounded, staging, unstaged
from cdi.install import units
from cdi.install.places import Places
from cdi.install.release import CURRENT, Payload
from cdi.node.gpu import Node
from cdi.plan import names
from cdi.spec import registry
from cdi.state import ledger as ledgers
from cdi.state import store, usage
from cdi.state.ledger import Ledger

LOGS = ("hook.log", "hook.log.1")
STATE = (ledgers.FILE, f"{ledgers.FILE}.previous", store.LOCK_FILE)
MAX_HOOKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done to a path."""

    action: str
    path: Path
    take: Callable[[], Any]
    vital: bool = True
    """Whether the rest makes no sense without it."""

    def __str__(self) -> str:
        return f"{self.action} {self.path}"


def installing(
    places: Places, payload: Payload, ledger: Ledger, node: Node | None, command: str | None
) -> Iterator[Step]:
    """Yield what gives a node the files of a version, and all that they need around them.

    Without a ``command`` there are no units, without a ``node`` the specs wait.
    """
    releases, paths = places.releases, places.paths
    name = releases.name_for(payload)
    if not payload.is_at(releases.folder / name):
        yield Step("install", releases.folder / name, partial(releases.lay, payload))
    if releases.current != name:
        yield Step("switch", releases.folder / CURRENT, partial(releases.switch, name))
    # In another system's tree the unit makes the place that it mounts.
    mounted = [paths.usage_dir] if places.live else []
    for folder in (paths.spec_dir, paths.state_dir, places.logs, *mounted):
        if not folder.is_dir():
            yield Step("make", folder, partial(make_directory, folder))
    if command is not None:
        yield from _units(places, command)
    if places.live and not usage.bounded(paths.usage_dir):
        yield Step("mount", paths.usage_dir, partial(_mount, paths.usage_dir), vital=False)
    located = partial(_located, places=places)
    if node is not None:
        update = partial(store.update, paths, node, located)
        yield Step("refresh", paths.spec_dir, update)
    elif located(ledger) != ledger:
        yield Step("change", ledgers.path_in(paths.state_dir), partial(store.note, paths, located))
    for old in sorted(releases.releases - {name} - _named(places)):
        yield Step("remove", releases.folder / old, partial(releases.remove, [old]))


def _located(ledger: Ledger, places: Places) -> Ledger:
    """Return the ledger with hook and library where they are installed."""
    options = replace(ledger.options, hook_path=places.hook, library_path=places.library)
    return replace(ledger, options=options)


def _units(places: Places, command: str) -> Iterator[Step]:
    files = places.systemd(command).files
    wanted = places.units / f"{units.TARGET}.wants"
    changed = False
    for name, text in files.items():
        path = places.units / name
        if not path.is_file() or path.read_bytes() != text:
            changed = True
            yield Step("write", path, partial(_write, path, text))
    for name in files:
        link = wanted / name
        if not link.is_symlink():
            changed = True
            yield Step("enable", link, partial(_enable, link, f"../{name}"))
    if changed and places.live:
        yield Step("reload", places.units, _reload, vital=False)


def _write(path: Path, text: bytes) -> None:
    make_directory(path.parent)
    with staging() as staged:
        staged.write(path, text)


def _enable(link: Path, target: str) -> None:
    make_directory(link.parent)
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    except OSError as error:
        raise os_error("make the link", link, error) from error


def _mount(directory: Path) -> None:
    _run("mount", "-t", "tmpfs", "-o", units.MOUNT_OPTIONS, "tmpfs", str(directory))


def _reload() -> None:
    _run("systemctl", "daemon-reload")


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise os_error("run", command[0], error) from error
    if done.returncode != 0:
        raise TemporaryError(
            f"{' '.join(command)} failed: {done.stderr.strip()}", "run it again as root"
        )


def _named(places: Places) -> set[str]:
    """Return the versions that a file for runtimes names, whoever wrote it."""
    found = set()
    folder = str(places.prefix).encode()
    for directory in places.spec_dirs:
        for path in registry.paths_in(directory):
            with suppress(OSError):
                text = path.read_bytes()
                found |= {
                    name
                    for name in places.releases.releases
                    if b"%b/%b/" % (folder, name.encode()) in text
                }
    return found


def removing(places: Places, ledger: Ledger) -> Iterator[Step]:
    """Yield what takes everything away: first what starts something, last what is known of it.

    Folders go if nothing of somebody else's is in them, and if they are not where something is
    mounted, as all of them are in a container that does this for its node.
    """
    paths, releases = places.paths, places.releases
    unit_files = _present(_unit_files(places))
    yield from map(_removal, unit_files)
    if unit_files and places.live and units.is_there(paths.sysroot):
        yield Step("reload", places.units, _reload, vital=False)
    specs = _specs(places, ledger)
    yield from map(_removal, specs)
    if _hook_of(places.hooks) == places.hook:
        yield _removal(places.hooks)
    mounted = places.live and usage.bounded(paths.usage_dir) is not None
    if mounted:
        yield Step("unmount", paths.usage_dir, partial(_run, "umount", str(paths.usage_dir)))
        yield _removal(paths.usage_dir)
    versions = [releases.folder / name for name in sorted(releases.releases)]
    files = _present(
        [
            *(places.logs / name for name in LOGS),
            releases.folder / CURRENT,
            *(path for path in _in(paths.values_dir) if _is_value(path)),
            *(path for path in _in(paths.state_dir) if unstaged(path.name) in STATE),
            paths.spec_dir / store.LOCK_FILE,
        ]
    )
    gone = {*specs, *versions, *files, *([paths.usage_dir] if mounted else [])}
    folders = []
    for folder in (
        *(paths.usage_dir, paths.usage_dir.parent, places.logs, releases.folder),
        *(paths.spec_dir, paths.values_dir, paths.state_dir),
    ):
        if folder in gone or not folder.is_dir() or folder.is_mount():
            continue
        if gone.issuperset(_in(folder)):
            gone.add(folder)
            folders.append(folder)
    # Without the link no version counts; without the ledger nobody knows another prefix.
    first = [path for path in files if path.parent == releases.folder]
    yield from map(_removal, first)
    for version in versions:
        yield Step("remove", version, partial(releases.remove, [version.name]))
    last = [path for path in (*files, *folders) if path not in {*first, releases.folder}]
    yield from map(_removal, [releases.folder] if releases.folder in folders else [])
    yield from map(_removal, last)


def _unit_files(places: Places) -> list[Path]:
    """Return where the units are and what enables them, this first."""
    files = places.systemd("").files
    wants = places.units / f"{units.TARGET}.wants"
    return [*(wants / name for name in files), *(places.units / name for name in files)]


def _specs(places: Places, ledger: Ledger) -> list[Path]:
    """Return the specs that are ours: of the GPUs, of pods, and what was never put in its place."""
    main = ledger.options.file
    return [
        path
        for path in _in(places.paths.spec_dir)
        if unstaged(path.name) == main or names.is_pod_spec(main, unstaged(path.name))
    ]


def _hook_of(path: Path) -> str:
    """Return the hook that a file of oci-hooks(5) names, empty if it names none."""
    try:
        return str(json.loads(read_bounded(path, MAX_HOOKS))["hook"]["path"])
    except (OSError, ValueError, LookupError, TypeError, PermanentError):
        return ""


def _is_value(path: Path) -> bool:
    """Whether a file has the values of a share, or would have had them."""
    share, _, suffix = unstaged(path.name).rpartition(".")
    return suffix in {"conf", "args"} and names.is_share(share)


def _in(directory: Path) -> list[Path]:
    """Return all that is in a directory; nothing if it is missing."""
    try:
        return [directory / name for name in sorted(names_in(directory))]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _present(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.is_symlink() or path.exists()]


def _removal(path: Path) -> Step:
    return Step("remove", path, partial(_remove, path))


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise os_error("remove", path, error) from error
