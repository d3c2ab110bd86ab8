"""AMD GPUs that a machine has and that no container can have: what holds them, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cdi.errors import PermanentError
from cdi.node import pci, sysfs
from cdi.node.gpu import Unusable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdi.node.products import Names

VENDOR = 0x1002
"""AMD's PCI vendor id, as of the GPUs that were ATI's."""

CLASSES = (0x03, 0x12)
"""PCI base classes of GPUs: display controllers, and processing accelerators."""


def require_no_wsl(dev: str) -> None:
    """Raise PermanentError on WSL2, where GPUs come without any of what is read here."""
    try:
        names = sysfs.listing(dev) or ()
    except sysfs.FileError:
        return
    if "dxg" in names and "kfd" not in names:
        raise PermanentError(
            "this is WSL2, whose GPUs are behind /dev/dxg: ROCm programs work there with"
            " librocdxg, also in containers, but without /dev/kfd and sysfs there are no GPUs,"
            " partitions or shares to describe as CDI devices, and nothing would hold a share",
            "give containers /dev/dxg, /usr/lib/wsl and librocdxg, or use a Linux that drives the"
            " GPU with amdgpu",
        )


def held_by_others(sys: str, driven: Sequence[pci.Device], names: Names) -> list[Unusable]:
    """Return the AMD GPUs but those that amdgpu drives, ascending by address."""
    folder = f"{sys}/bus/pci/devices"
    try:
        devices = sysfs.listing(folder) or ()
    except sysfs.FileError:
        return []
    own = {device.pci for device in driven}
    places = sorted((place, name) for name in devices if (place := pci.place_of(name)) is not None)
    found = []
    for _, name in places:
        path = f"{folder}/{name}"
        if _number(f"{path}/vendor") == VENDOR and (_number(f"{path}/class") >> 16) in CLASSES:
            driver = _driver(path)
            if driver != "amdgpu" and name not in own:
                found.append(Unusable(name, f"{_name(path, names)} {_holder(name, driver, path)}"))
    return found


def without_render_node(device: pci.Device, names: Names) -> Unusable:
    """Return a GPU that amdgpu drives without a render node."""
    reason = _virtualised(device.path) or (
        "has no render node, through which containers would use it; see the kernel's log for what"
        " amdgpu says of it"
    )
    return Unusable(device.pci, f"{_name(device.path, names)} {reason}")


def _holder(name: str, driver: str, path: str) -> str:
    """Say what holds a GPU that amdgpu does not drive, what that means, and what to do."""
    if virtualised := _virtualised(path):
        return virtualised
    if not driver:
        return (
            "has no driver, so that nothing can use it; load amdgpu, and see the kernel's log if"
            " it does not take the GPU"
        )
    if driver == "vfio-pci":
        return (
            "is bound to vfio-pci, so that it is a virtual machine's and not for containers; to"
            f" have it here bind it to amdgpu: driverctl unset-override {name}"
        )
    return (
        f"is bound to the driver {driver}, and containers can have what amdgpu drives; bind it to"
        " that if it is to be used here"
    )


def _virtualised(path: str) -> str:
    """Say of an SR-IOV physical function that its virtual functions have it; empty for another."""
    count = _number(f"{path}/sriov_numvfs", 10)
    if not count:
        return ""
    return (
        f"is an SR-IOV physical function, and its {count} virtual functions have the GPU; bind"
        " those to amdgpu to use them here, or end them by writing 0 to its sriov_numvfs"
    )


def _name(path: str, names: Names) -> str:
    told = sysfs.read_quietly(f"{path}/product_name") or ""
    return names.market_name(told, _number(f"{path}/device"), _number(f"{path}/revision"))


def _driver(path: str) -> str:
    try:
        return Path(f"{path}/driver").readlink().name
    except OSError:
        return ""


def _number(path: str, base: int = 16) -> int:
    """Return the number in a file that is only told of; 0 if it cannot be read."""
    try:
        return sysfs.read_number(path, base, 1 << 32) or 0
    except sysfs.FileError:
        return 0
