"""Looking into the container's root filesystem, which is hostile.

Paths are walked name by name from the root's descriptor without following any link of the kernel's;
links are read and followed here, where an absolute one starts at the container's root again. Bind
mounts of the configuration are walked into, since the hook runs before they are made. Nothing but
regular files is ever opened for reading.
"""

from __future__ import annotations

import errno
import os
import stat

from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container

HINT = "use an image whose programs are regular files"
MAX_PATH = 4096
MAX_PASSES = 128
"""Links and steps upwards in one look-up; the kernel follows 40 links."""

EMPTY = {"tmpfs", "proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "devtmpfs"}
"""Filesystems that hold no program when the container starts."""

WALK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Rootfs:
    """The files that the container will see."""

    __slots__ = ("container",)

    def __init__(self, container: Container) -> None:
        self.container = container

    def open(self, path: str, *, or_folder: bool = False) -> tuple[int, str] | None:
        """Open a regular file by its path in the container, for reading.

        Returns the descriptor and the path without links; None if nothing is there, or, with
        ``or_folder``, no more than a folder, which execvp passes over. Raises Refusal for what is
        there but is no regular file, or cannot be looked at.
        """
        reached = self._walk(path)
        if reached is None:
            return None
        descriptor, real = reached
        try:
            mode = os.fstat(descriptor).st_mode
            if or_folder and stat.S_ISDIR(mode):
                return None
            if not stat.S_ISREG(mode):
                found = f"{_kind(mode)} at {real[:200]!r}"
                raise Refusal(f"a regular file at {path[:200]!r} in the container", found, HINT)
            # Opened through the descriptor: by name it could be another file by now.
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC), real
        finally:
            os.close(descriptor)

    def _walk(self, path: str) -> tuple[int, str] | None:
        """Return a descriptor for the path's end, links followed, and the path without links."""
        for _ in range(MAX_PASSES):
            if len(path) > MAX_PATH:
                break
            reached = self._pass([name for name in path.split("/") if name not in {"", "."}])
            if not isinstance(reached, str):
                return reached
            path = reached
        expected = f"paths of {MAX_PATH} characters and {MAX_PASSES} links in the container"
        raise Refusal(expected, f"more at {path[:200]!r}", HINT)

    def _pass(self, names: list[str]) -> tuple[int, str] | str | None:
        """Walk down to the end, or to the first link or step upwards.

        Returns a descriptor and the path, or the path to go on with, or None if nothing is there.
        """
        mount = self.container.mount_of("/" + "/".join(names))
        source = self.container.root
        reached = 0
        if mount is not None:
            source = mount.source
            reached = len(mount.destination.strip("/").split("/"))
            if mount.kind in EMPTY:
                return None
            if mount.kind != "bind":
                found = f"a mount of the type {mount.kind[:80]!r} at {mount.destination[:200]!r}"
                raise Refusal("programs in the image or in bind mounts", found, HINT)
        current = _open(source, os.O_PATH | os.O_CLOEXEC, None)
        try:
            for place in range(reached, len(names)):
                if current is None:
                    return None
                if names[place] == "..":
                    return "/".join(["", *names[: max(place - 1, 0)], *names[place + 1 :]])
                following = _open(names[place], WALK, current)
                os.close(current)
                current = following
                if current is not None and stat.S_ISLNK(os.fstat(current).st_mode):
                    target = os.readlink("", dir_fd=current)
                    start = [] if target.startswith("/") else names[:place]
                    return "/".join(["", *start, target, *names[place + 1 :]])
            result, current = current, None
            return None if result is None else (result, "/" + "/".join(names))
        finally:
            if current is not None:
                os.close(current)


def _open(path: str, flags: int, folder: int | None) -> int | None:
    """Return a descriptor, None if nothing is there."""
    try:
        return os.open(path, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return None
        raise


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
