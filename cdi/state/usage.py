"""The usage regions of shares: one file of fixed size for each, which its container may write.

They lie on a filesystem of their own with a bounded size, so that a tenant who extends his file
cannot fill the host's disk.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from cdi.files import names_in, os_error, remove_files, unstaged
from cdi.plan import names

SLOTS = 1024
"""Processes that a region has room for."""

HEADER_BYTES = 4096
SLOT_BYTES = 16
"""A process id and its start time."""

COUNTER_BYTES = 8
"""The bytes a process holds on one GPU."""


def region_bytes(gpus: int) -> int:
    """Return the size of the region of a share with so many GPUs, as libamvgpu lays it out."""
    return HEADER_BYTES + SLOTS * (SLOT_BYTES + gpus * COUNTER_BYTES)


def bounded(directory: Path) -> Path | None:
    """Return the directory if it is a filesystem of its own, which bounds what a tenant can fill.

    None otherwise: then shares get no usage region, and the library keeps its account in the
    container's own /tmp.
    """
    return directory if os.path.ismount(directory) and directory.is_dir() else None


def lay(directory: Path, gpus_by_share: Mapping[str, int]) -> None:
    """Make the missing regions, filled with zeros, which the library takes for new ones.

    A region that is there is left alone: its container may be running. The blocks are allocated
    now, so that a full filesystem is an error here and not a SIGBUS in a container. A region gets
    its name when it is complete: a crash leaves none that would be taken for one.
    """
    for name in gpus_by_share.keys() - names_in(directory):
        path = directory / name
        new = directory / f".{name}.new"
        try:
            with suppress(FileNotFoundError):
                new.unlink()
            descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, region_bytes(gpus_by_share[name]))
                # The container's processes may have any user id.
                os.fchmod(descriptor, 0o666)
            finally:
                os.close(descriptor)
            new.rename(path)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise os_error("make the usage region", path, error) from error


def sweep(directory: Path, living: Collection[str]) -> None:
    """Remove the regions of shares that are gone; a container that has one mounted keeps it."""
    stale = names_in(directory).difference(living)
    remove_files(directory, [name for name in stale if names.is_share(unstaged(name))])
