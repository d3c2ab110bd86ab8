"""The usage region, mirrored from libamvgpu/region.h by its documentation, not from its code."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEADER = 4096
SLOTS = 1024
SLOT = 16
MAGIC = b"AMVGPU\0\1"


def region_size(devices: int) -> int:
    """Bytes of a region for `devices` devices (1 to 64)."""
    return HEADER + SLOTS * (SLOT + 8 * devices)


def lay(path: Path, devices: int) -> Path:
    """Lay a region that no process has used yet, as the node does."""
    path.write_bytes(bytes(region_size(devices)))
    return path


def used(path: Path, device: int) -> list[int]:
    """Bytes of `device` that each of the 1024 slots holds."""
    start = HEADER + SLOTS * SLOT + device * SLOTS * 8
    return list(struct.unpack(f"<{SLOTS}Q", path.read_bytes()[start : start + SLOTS * 8]))


def pids(path: Path) -> list[int]:
    """Process numbers of the slots in use."""
    text = path.read_bytes()
    slots = [struct.unpack_from("<QII", text, HEADER + i * SLOT)[1] for i in range(SLOTS)]
    return [pid for pid in slots if pid]
