"""Device memory as a GPU driver hands it out: the kernel's stand-in for one, /proc/dmemtest."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.kernel import syscall
from tests.kernel.guest import Region

MIB = 1 << 20
GPUS = (Region("drm/0000:03:00.0/vram", 1024 * MIB), Region("drm/0000:83:00.0/vram", 2048 * MIB))
"""The regions of every guest: two GPUs, named as amdgpu names them."""


@dataclass(frozen=True)
class Device:
    """An open file of the driver: what was charged through it goes when it is closed."""

    descriptor: int

    def charge(self, region: Region, count: int) -> int:
        """Allocate bytes for the calling process; answers 0 or the error's number."""
        return syscall.write(self.descriptor, f"charge {region.name} {count}")

    def register(self, region: Region) -> int:
        """Announce a region, as a driver does that is loaded."""
        return syscall.write(self.descriptor, f"register {region.name} {region.bytes}")

    def unregister(self, region: Region) -> int:
        """Take a region back, as a driver does that is unloaded."""
        return syscall.write(self.descriptor, f"unregister {region.name}")


@contextmanager
def opened() -> Iterator[Device]:
    descriptor = os.open("/proc/dmemtest", os.O_WRONLY)
    try:
        yield Device(descriptor)
    finally:
        os.close(descriptor)
