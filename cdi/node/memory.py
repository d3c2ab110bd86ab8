"""How much memory ROCr offers HIP on a GPU, and of which kind it is.

HIP gets what the GPU's own KFD memory banks come to, on every kernel and on APUs too. What stands
behind a bank is not told: VRAM, or on most APUs the host's memory (GTT). It is seen by its size,
since VRAM can be no more than amdgpu says the device has.

| kernel | an APU's bank is |
| --- | --- |
| before 6.10 | the carve-out, which is VRAM |
| 6.10 to 6.14 | the limit of GTT, even where the carve-out is larger |
| from 6.15 on | the limit of GTT, or the carve-out where that is larger |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["VRAM", "shared"]

GFX942 = 90402
"""MI300X, whose memory is VRAM, and MI300A, which has no VRAM of its own at all."""

DISCRETE = frozenset(
    {
        80003, 90000, 90004, 90006, 90008, 90010, 90500, 100100, 100101, 100102, 100300, 100301,
        100302, 100304, 110000, 110001, 110002, 120000, 120001,
    }
)  # fmt: skip
"""``gfx_target_version`` of parts that are never APUs, so that their memory is VRAM."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the kernel tells of the memory of a PCI device."""

    version: int
    """``gfx_target_version``, 0 where it is not known."""
    vram: int | None
    """``mem_info_vram_total``; of an APU it is what the firmware has carved out."""
    gtt: int | None
    """``mem_info_gtt_total``."""
    has_cpus: bool
    """Whether its KFD node is one of CPUs as well."""

    @property
    def own(self) -> bool:
        """Whether all of its memory is known to be VRAM."""
        return self.version in DISCRETE or (self.version == GFX942 and bool(self.vram))


def kind(device: Device, banks: Sequence[int | None]) -> Kind:
    """Return the kind of memory that the banks of a device's partitions are of.

    What cannot be shown to be VRAM is shared: the kernel's cap on VRAM would hold nothing.
    """
    if device.version in DISCRETE:
        return "VRAM"
    if None in banks:
        return "VRAM" if device.own else "shared"
    total = sum(bank for bank in banks if bank)
    if device.has_cpus or device.vram is None or total > device.vram:
        return "shared"
    if device.own or len(banks) > 1:
        return "VRAM"
    # Less than the VRAM is no part of it but GTT, and what is as much as both may be either.
    is_vram = total == device.vram and device.gtt not in {None, device.vram}
    return "VRAM" if is_vram else "shared"


def offered(
    device: Device, banks: Sequence[int | None], parts: int | None
) -> tuple[Kind, list[int]]:
    """Return the kind of a device's memory, and the bytes that HIP is offered on each partition.

    They are 0 where that is not known: where a KFD node has no bank that can be read, and the
    device is not one whose VRAM is in so many equal ``parts``.
    """
    found = kind(device, banks)
    part = (device.vram or 0) // parts if device.own and parts else 0
    sizes = [part if bank is None else bank for bank in banks]
    if found == "shared" and device.gtt and device.vram is not None:
        # No more fits than GTT has room for, which amdgpu.gttsize may make less than KFD offers.
        sizes = [min(size, device.gtt) for size in sizes]
    return found, sizes
