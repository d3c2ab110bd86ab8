"""The container's cgroup in the unified hierarchy, and the dmem controller on the way to it."""

from __future__ import annotations

import errno
import os

from ocihook.files import read_file
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container

LIMIT = 4 * 1024 * 1024
CONTROLLER = "dmem"
HINT = (
    "a memory cap needs Linux 6.14 or later with CONFIG_CGROUP_DMEM, cgroup v2, "
    "and a cgroup of the container's own"
)


class Hierarchy:
    """A mounted cgroup v2 hierarchy."""

    __slots__ = ("delegated", "mount", "root")

    def __init__(self, mount: str, root: str, *, delegated: bool) -> None:
        self.mount = mount
        """Where it is mounted."""
        self.root = root
        """Which cgroup is mounted there, ``/`` as a rule."""
        self.delegated = delegated
        """Mounted with ``nsdelegate``: a cgroup namespace cannot change the limits on its root."""

    def levels(self, path: str) -> list[str]:
        """Return the folders from the mount down to a cgroup of ``/proc/<pid>/cgroup``."""
        below = path.removeprefix(self.root.rstrip("/")).strip("/")
        folders = [self.mount]
        for name in below.split("/") if below else []:
            folders.append(f"{folders[-1]}/{name}")
        return folders


def find(pid: int, container: Container, sysroot: str) -> list[str]:
    """Return the folders from the hierarchy's root to the container's cgroup.

    Raises Refusal where the process has no cgroup v2 of its own that would hold it.
    """
    path = _path(f"{sysroot}/proc/{pid}/cgroup")
    own = _path(f"{sysroot}/proc/self/cgroup")
    if path == "/" or f"{own}/".startswith(f"{path}/"):
        # A cap there would hold the runtime, or the whole session that it was started from.
        raise Refusal("a cgroup v2 of the container's own", f"it in {path[:200]!r}", HINT)
    if ".." in path.split("/"):
        raise Refusal("the container's cgroup below the hook's", repr(path[:200]), HINT)
    hierarchy = _hierarchy(sysroot, path)
    mount = _writable_mount(container)
    if mount and not (hierarchy.delegated and _has_namespace(container)):
        raise Refusal(
            "a container that cannot change its own cap",
            f"a writable cgroup mount at {mount[:200]!r}",
            "mount it read-only, or use a private cgroup namespace where the host mounts cgroup v2 "
            "with nsdelegate",
        )
    return hierarchy.levels(path)


def enable(levels: list[str]) -> None:
    """Switch the dmem controller on in every ancestor of the last folder, from the top down.

    It is never switched off again: that would drop the caps of all other containers. Raises
    Refusal where the kernel has no such controller or a level does not take it.
    """
    for folder in levels[:-1]:
        control = f"{folder}/cgroup.subtree_control"
        try:
            if CONTROLLER in read_file(control, LIMIT).decode().split():
                continue
            write(control, f"+{CONTROLLER}")
        except OSError as error:
            raise Refusal(f"to enable {CONTROLLER} in {control}", _reason(error), HINT) from error


def write(path: str, text: str) -> None:
    """Write a control file in one go; raises OSError with what the kernel says."""
    # A buffered file would tell of the kernel's error only when it is closed.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    if error.errno == errno.EBUSY:
        return "processes in that cgroup itself (EBUSY)"
    if error.errno in {errno.ENOENT, errno.EINVAL}:
        return f"no such controller there ({errno.errorcode[error.errno]})"
    return error.strerror or str(error)


def _path(file: str) -> str:
    """Return the cgroup v2 path that a ``/proc/<pid>/cgroup`` names."""
    try:
        lines = read_file(file, LIMIT).decode("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise Refusal(f"to read {file}", error.strerror or str(error), HINT) from error
    for line in lines:
        if line.startswith("0::/"):
            return line.removeprefix("0::")
    raise Refusal(f"a cgroup v2 in {file}", "none", HINT)


def _hierarchy(sysroot: str, path: str) -> Hierarchy:
    """Return the cgroup v2 mount that shows ``path``."""
    file = f"{sysroot}/proc/self/mountinfo"
    found = None
    for line in read_file(file, LIMIT).decode("utf-8", "surrogateescape").splitlines():
        # proc_pid_mountinfo(5): id parent dev root mount options [tags] - type source options
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        kind, _, rest = right.partition(" ")
        if kind != "cgroup2" or len(fields) < 6:
            continue
        root = _unescape(fields[3])
        if not f"{path}/".startswith(root.rstrip("/") + "/"):
            continue
        delegated = "nsdelegate" in rest.split(" ")[-1].split(",")
        if found is None or len(root) < len(found.root):
            found = Hierarchy(f"{sysroot}{_unescape(fields[4])}", root, delegated=delegated)
    if found is None:
        raise Refusal(f"a cgroup2 mount in {file} that shows {path[:200]!r}", "none", HINT)
    return found


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo: blank, tab, newline, backslash."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _writable_mount(container: Container) -> str | None:
    """Return where the container can write to a cgroup filesystem, None if nowhere."""
    for mount in container.mounts:
        shown = mount.kind in {"cgroup", "cgroup2"} or (
            mount.kind == "bind" and f"{mount.source}/".startswith("/sys/fs/cgroup/")
        )
        if shown and "ro" not in mount.options:
            return mount.destination
    return None


def _has_namespace(container: Container) -> bool:
    """Whether the container gets a cgroup namespace of its own."""
    return any(
        entry.get("type") == "cgroup" and not entry.get("path") for entry in container.namespaces
    )
