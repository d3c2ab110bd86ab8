"""The PCI devices that amdgpu drives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdi.errors import PermanentError
from cdi.node import drm, sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Device:
    """A PCI device that amdgpu drives."""

    pci: str
    place: tuple[int, int, int, int]
    """Domain, bus, device and function."""
    path: str
    card: int | None
    render: int | None
    unique_id: int | None
    """None where the kernel has no such file, or it cannot be read."""


def devices(sys: str, warnings: list[str]) -> Iterator[Device]:
    """Yield the PCI devices that amdgpu drives, ascending by address."""
    folders = (f"{sys}/bus/pci/drivers/amdgpu", f"{sys}/module/amdgpu/drivers/pci:amdgpu")
    names = None
    for folder in folders:
        try:
            names = sysfs.listing(folder)
        except sysfs.FileError as error:
            raise PermanentError(
                str(error), "run as root, on the host or with the host's /sys mounted"
            ) from None
        if names is not None:
            break
    if names is None:
        raise PermanentError(
            f"expected the amdgpu driver, found no folder {folders[0]}",
            "load it with 'modprobe amdgpu'; if that fails the kernel's log says why",
        )
    places = sorted((place, name) for name in names if (place := place_of(name)) is not None)
    if not places:
        raise PermanentError(
            f"expected a GPU below {folder}, found none: amdgpu drives no PCI device",
            "see 'lspci -k' for the driver that holds the GPU, such as vfio-pci",
        )
    for place, name in places:
        path = f"{folder}/{name}"
        try:
            card, render = drm.minors(f"{path}/drm")
        except sysfs.FileError as error:
            warnings.append(f"GPU {name} is left out: {error}")
            continue
        try:
            unique_id = sysfs.read_number(f"{path}/unique_id", 16, 1 << 64)
        except sysfs.FileError as error:
            warnings.append(f"the unique id of GPU {name} is taken from KFD: {error}")
            unique_id = None
        yield Device(name.lower(), place, path, card, render, unique_id)


def place_of(name: str) -> tuple[int, int, int, int] | None:
    """Return domain, bus, device and function of a PCI address; None for another name."""
    domain, _, rest = name.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    widths = (len(domain), len(bus), len(device), len(function))
    if widths[1:] != (2, 2, 1) or not 4 <= widths[0] <= 8 or not name.isascii():
        return None
    digits = domain + bus + device + function
    if not digits.isalnum():
        return None
    try:
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)
    except ValueError:
        return None
