"""The memory cap of a share: ``dmem.max`` of the container's cgroup.

A cap counts only once it was read back: up to Linux 7.2 a cap below the present use is taken and
does nothing, and values from (2**63-1)/4096 on read back as no limit (measured on 7.2 and 7.3).
"""

from __future__ import annotations

from ocihook import cgroup
from ocihook.files import read_file
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container
    from ocihook.share import Share

LIMIT = 1024 * 1024
HINT = "look at dmem.capacity and dmem.max of the cgroups named"


def apply(pid: int, container: Container, share: Share, sysroot: str) -> str:
    """Cap the container's cgroup to the share's bytes of VRAM; return what was capped, as a text.

    On a failure the caps are as they were before, and Refusal says what the kernel answered.
    """
    levels = cgroup.find(pid, container, sysroot)
    cgroup.enable(levels)
    capacity = _table(f"{levels[0]}/dmem.capacity")
    caps = {}
    for pci, wanted in share.vram().items():
        region = _region(capacity, pci)
        limit = capacity[region]
        if not limit.isdecimal() or wanted > int(limit):
            raise Refusal(
                f"at most the {limit[:40]} bytes of {region}", f"{wanted}", node_hint=HINT
            )
        caps[region] = str(wanted)
    file = f"{levels[-1]}/dmem.max"
    before = _table(file)
    written: list[str] = []
    try:
        for region, size in caps.items():
            # Noted first: the deadline may strike between the write and the note.
            written.append(region)
            _set(file, region, size)
        _compare(file, caps)
    except BaseException:
        _restore(file, {region: before.get(region, "max") for region in written})
        raise
    return " ".join(f"{region}={size}" for region, size in caps.items())


def _set(file: str, region: str, size: str) -> None:
    """Set one region's cap: more than one in a write is not atomic, or refused."""
    try:
        cgroup.write(file, f"{region} {size}\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise Refusal(f"to write `{region} {size}` to {file}", reason, node_hint=HINT) from error


def _restore(file: str, caps: dict[str, str]) -> None:
    """Put earlier caps back as far as the kernel takes them; the first failure is the one told."""
    for region, size in caps.items():
        try:
            _set(file, region, size)
        except Refusal:
            continue


def _compare(file: str, caps: dict[str, str]) -> None:
    after = _table(file)
    for region, size in caps.items():
        if after.get(region) != size:
            found = f"{after.get(region, 'nothing')} read back"
            raise Refusal(f"`{region} {size}` in {file}", found, node_hint=HINT)


def _region(capacity: dict[str, str], pci: str) -> str:
    """Return the name of the VRAM region of a PCI device; its format is the driver's affair."""
    names = [
        name
        for name in capacity
        if pci in name.split("/") and name.rsplit("/", 1)[-1].startswith("vram")
    ]
    if len(names) != 1:
        found = " ".join(names) or " ".join(capacity) or "none"
        raise Refusal(f"one VRAM region of {pci} in dmem.capacity", found[:400], node_hint=HINT)
    return names[0]


def _table(file: str) -> dict[str, str]:
    """Return the values by region of a dmem file: lines of a name, a blank and a value."""
    try:
        text = read_file(file, LIMIT).decode("ascii", "backslashreplace")
    except OSError as error:
        raise Refusal(
            f"to read {file}", error.strerror or str(error), node_hint=cgroup.HINT
        ) from error
    table = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        table[name] = value
    return table
