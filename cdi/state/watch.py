"""Keeps the specs right while GPUs come, go and are repartitioned, and whoever changes files.

sysfs tells inotify nothing, and a repartitioning sends no uevent of its own, so the few files that
change with the GPUs are looked at once a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cdi.errors import AmdCdiError, TemporaryError
from cdi.node import topology
from cdi.plan.options import Options
from cdi.state import store
from cdi.state.cache import Cache
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs

SECONDS = 1.0

MODES = ("current_compute_partition", "current_memory_partition")


def watch(
    paths: Paths, options: Options, seconds: float = SECONDS
) -> Iterator[NodeSpecs | AmdCdiError]:
    """Refresh the specs now and whenever the GPUs or the files change, for ever.

    Yields what a refresh made that changed a spec, and the error that kept one from it. What
    retrying may heal is tried again; otherwise the next change is waited for, and the specs stay as
    they were: a container whose GPU is gone does not start, as the runtime finds no node.
    """
    cache = Cache()
    seen: object = None
    told: object = None
    while True:
        # As of before the refresh, so that nothing is missed: what it wrote leads to another one.
        found = (gpu_signature(paths.sysroot), file_signatures(paths))
        if found != seen:
            seen = found
            cache.intact = False
            try:
                node = topology.read_node(paths.sysroot)
                made = store.update(
                    paths, node, lambda ledger: replace(ledger, options=options), cache
                )
                if made.changed or made.warnings != told:
                    told = made.warnings
                    yield made
            except AmdCdiError as error:
                if isinstance(error, TemporaryError):
                    seen = None
                if str(error) != told:
                    told = str(error)
                    yield error
        time.sleep(seconds)


def file_signatures(paths: Paths) -> dict[str, object]:
    """Return, by path, what differs whenever the ledger, a spec or a file of values has changed."""
    found: dict[str, object] = {}
    for directory in (paths.spec_dir, paths.values_dir, paths.state_dir):
        with suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                # What a writer has not put in its place is hidden.
                if entry.name.startswith(".") or entry.is_dir():
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
    return found


def gpu_signature(sysroot: Path) -> list[object]:
    """Return what differs whenever GPUs have come, gone or been repartitioned."""
    driver = sysroot / "sys/bus/pci/drivers/amdgpu"
    found: list[object] = []
    with suppress(OSError):
        found.append((sysroot / "sys/class/kfd/kfd/topology/generation_id").read_bytes())
    with suppress(OSError):
        for device in sorted(driver.iterdir()):
            found.append(device.name)
            for mode in MODES:
                with suppress(OSError):
                    found.append((device / mode).read_bytes())
    return found
