"""Keeps the spec right while GPUs come, go and are repartitioned.

sysfs tells inotify nothing, and a repartitioning sends no uevent of its own, so the few files that
change with the GPUs are looked at once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cdi.errors import AmdCdiError, TemporaryError
from cdi.node import topology
from cdi.plan.options import Options
from cdi.state import store
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs

SECONDS = 1.0

MODES = ("current_compute_partition", "current_memory_partition")


def watch(
    paths: Paths, options: Options, seconds: float = SECONDS
) -> Iterator[NodeSpecs | AmdCdiError]:
    """Refresh the spec now and whenever the GPUs or the spec change, for ever.

    Yields what each refresh made, or the error that kept it from it. What retrying may heal is
    tried again; otherwise the next change is waited for, and the spec stays as it was: a
    container whose GPU is gone does not start, as the runtime finds no node.
    """
    seen: object = None
    told = ""
    while True:
        if _signature(paths, options) != seen:
            try:
                node = topology.read_node(paths.sysroot)
                made = store.update(paths, node, lambda ledger: replace(ledger, options=options))
                told = ""
                seen = _signature(paths, options)
                yield made
            except AmdCdiError as error:
                seen = None if isinstance(error, TemporaryError) else _signature(paths, options)
                if str(error) != told:
                    told = str(error)
                    yield error
        time.sleep(seconds)


def _signature(paths: Paths, options: Options) -> object:
    """Return what differs whenever the spec may have to."""
    found = gpu_signature(paths.sysroot)
    with suppress(OSError):
        status = (paths.spec_dir / options.file).stat()
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
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
