"""The container's cgroup in the unified hierarchy, and the dmem controller on the way to it."""

from __future__ import annotations

import errno
import itertools
import os

from ocihook.files import read_file
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container, Mount

LIMIT = 4 * 1024 * 1024
CONTROLLER = "dmem"
HINT = (
    "a memory cap needs Linux 6.14 or later with CONFIG_CGROUP_DMEM, cgroup v2, "
    "and a cgroup of the container's own"
)


class Hierarchy:
    """A mounted cgroup v2 hierarchy."""

    __slots__ = ("mount", "root")

    def __init__(self, mount: str, root: str) -> None:
        self.mount = mount
        """Where it is mounted."""
        self.root = root
        """Which cgroup is mounted there, ``/`` as a rule."""

    def levels(self, path: str, sysroot: str) -> list[str]:
        """Return the folders from the mount down to a cgroup of ``/proc/<pid>/cgroup``."""
        below = path.removeprefix(self.root.rstrip("/")).strip("/")
        folders = [f"{sysroot}{self.mount}"]
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
        raise Refusal("a cgroup v2 of the container's own", f"it in {path[:200]!r}", node_hint=HINT)
    if ".." in path.split("/"):
        raise Refusal("the container's cgroup below the hook's", repr(path[:200]), node_hint=HINT)
    mounted = _mounted(sysroot)
    _check_reach(container, [hierarchy.mount for hierarchy in mounted])
    showing = [one for one in mounted if f"{path}/".startswith(one.root.rstrip("/") + "/")]
    if not showing:
        file = f"{sysroot}/proc/self/mountinfo"
        raise Refusal(
            f"a cgroup2 mount in {file} that shows {path[:200]!r}", "none", node_hint=HINT
        )
    return min(showing, key=lambda one: len(one.root)).levels(path, sysroot)


def enable(levels: list[str]) -> None:
    """Switch the dmem controller on in every ancestor of the last folder, from the top down.

    It is never switched off again: that would drop the caps of all other containers. Raises
    Refusal where the kernel has no such controller or a level does not take it.
    """
    for folder, below in itertools.pairwise(levels):
        control = f"{folder}/cgroup.subtree_control"
        try:
            listed = CONTROLLER in read_file(control, LIMIT).decode().split()
            # Another hook's write shows there before the files do; one of our own waits for it.
            if listed and (below != levels[-1] or os.path.exists(f"{below}/{CONTROLLER}.max")):
                continue
            write(control, f"+{CONTROLLER}")
        except OSError as error:
            raise Refusal(
                f"to enable {CONTROLLER} in {control}", _reason(error), node_hint=HINT
            ) from error


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
        lines = read_file(file, LIMIT).decode("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise Refusal(f"to read {file}", error.strerror or str(error), node_hint=HINT) from error
    # Not splitlines: a name may hold what Python takes for the end of a line, but no line feed.
    for line in lines:
        if line.startswith("0::/"):
            return line.removeprefix("0::")
    raise Refusal(f"a cgroup v2 in {file}", "none", node_hint=HINT)


def _mounted(sysroot: str) -> list[Hierarchy]:
    """Return the cgroup v2 mounts of the host."""
    found = []
    text = read_file(f"{sysroot}/proc/self/mountinfo", LIMIT).decode("utf-8", "surrogateescape")
    for line in text.split("\n"):
        # proc_pid_mountinfo(5): id parent dev root mount options [tags] - type source options
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if right.startswith("cgroup2 ") and len(fields) >= 6:
            found.append(Hierarchy(_unescape(fields[4]), _unescape(fields[3])))
    return found


def _unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo: blank, tab, newline, backslash."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def _check_reach(container: Container, places: list[str]) -> None:
    """Raise Refusal if the container can write to a cgroup filesystem mounted at these places.

    That the host mounts it with ``nsdelegate`` is no help: from a cgroup namespace below its own,
    which takes no privilege in a user namespace, a container changes the limits on its own root
    (measured on Linux 6.18).
    """
    expected = "a container that cannot change its own cap"
    for mount in container.mounts:
        if _is_writable(mount, places):
            found = f"a writable cgroup mount at {mount.destination[:200]!r}"
            raise Refusal(expected, found, "mount it read-only, and nothing that it lies in")
    if "CAP_SYS_ADMIN" in container.capabilities:
        found = "CAP_SYS_ADMIN, with which it mounts cgroups for writing"
        raise Refusal(expected, found, "start it unprivileged and without SYS_ADMIN")


def _is_writable(mount: Mount, places: list[str]) -> bool:
    """Whether a mount of the container brings a cgroup filesystem for writing."""
    read_only = "ro" in mount.options and "rw" not in mount.options
    if mount.kind != "bind":
        return mount.kind in {"cgroup", "cgroup2"} and not read_only
    source = os.path.realpath(mount.source).rstrip("/") + "/"
    if any(source.startswith(f"{place}/") for place in places):
        return not read_only
    # Of what is mounted below a source, ``ro`` makes nothing read-only, and ``bind`` brings none.
    recursive = "bind" not in mount.options or "rbind" in mount.options
    brings = any(f"{place}/".startswith(source) for place in places)
    return brings and recursive and "rro" not in mount.options
