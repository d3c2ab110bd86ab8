"""Captured KFD topologies, with the PCI side laid beside them.

The captures hold the KFD tree only. What amdgpu adds is laid from the minors and locations that
the tree names, as plain folders below ``module/amdgpu`` (the samples have links below
``bus/pci``), so that both shapes of sysfs are read.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from tests import need

REPOSITORY = Path(__file__).resolve().parent.parent

CPX = "topo-mi300-cpx"
MI210 = "topo-mi210-xgmi-pcie"


def shared(relative: str) -> Path:
    """Return a file that is kept beside the repository; skip without it, but never in CI."""
    folder = Path(os.environ.get("AMD_CDI_SHARED", REPOSITORY.parent / "shared"))
    path = folder / relative
    if not path.exists():
        need.lacking(f"there is no {path}; name its folder with AMD_CDI_SHARED")
    return path


def lay(capture: str, sysroot: Path, **files: str) -> Path:
    """Unpack a capture as a sysroot; ``files`` go to the folder of every PCI device."""
    kfd = sysroot / "sys/class/kfd/kfd"
    kfd.mkdir(parents=True)
    with tarfile.open(shared(f"topologies/{capture}.tar.xz")) as archive:
        # Debian 12's Python has no filters, and later ones warn if none is chosen.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(sysroot / "capture")
    (nodes,) = (sysroot / "capture").rglob("nodes")
    (kfd / "topology").mkdir()
    nodes.rename(kfd / "topology/nodes")
    driver = sysroot / "sys/module/amdgpu/drivers/pci:amdgpu"
    xcps = 0
    for node in sorted((kfd / "topology/nodes").iterdir(), key=lambda path: int(path.name)):
        values = properties(node / "properties")
        if values["simd_count"] == 0:
            continue
        location = values["location_id"]
        pci = f"{values['domain']:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.0"
        device = driver / pci
        if device.exists():
            device = sysroot / f"sys/devices/platform/amdgpu_xcp_{xcps}"
            xcps += 1
        else:
            device.mkdir(parents=True)
            write(device / "device", f"{values['device_id']:#06x}")
            write(device / "unique_id", f"{values['unique_id']:016x}")
            for name, content in files.items():
                write(device / name, content)
        minor = values["drm_render_minor"]
        (device / f"drm/renderD{minor}").mkdir(parents=True)
        (device / f"drm/card{minor - 128}").mkdir()
    return sysroot


def properties(path: Path) -> dict[str, int]:
    """Return the numbers in a KFD file."""
    lines = path.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def change(path: Path, **changes: object) -> None:
    """Change lines of a KFD file; None takes a line out."""
    kept = {**properties(path), **changes}
    lines = [f"{name} {value}\n" for name, value in kept.items() if value is not None]
    path.write_text("".join(lines), encoding="ascii")


def write(path: Path, content: str) -> None:
    """Write a sysfs attribute, in its folder made at need."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{content}\n", encoding="utf-8")
