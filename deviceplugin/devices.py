"""What the node offers: units that pods book, and the device ids that kubelet counts them by.

A unit is a GPU, or a partition of a partitioned one. Kubelet sees one device for each share that a
unit can be split into; HAMi's scheduler sees the unit once, with the number of its shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cdi.node.gpu import Gpu, Node, Partition
from cdi.node.modes import UNKNOWN
from cdi.plan.amount import MIB
from cdi.plan.planner import divisible

Naming = Literal["single", "mixed"]

RESOURCE = "amd.com/gpu"

SHARES = 10
SHARES_GFX12 = 2
"""gfx12 has two pipes for user queues (as HAMi's own plugin counts them)."""

GFX12_VERSION = 120000


Place = tuple[str, int]
"""PCI address of a GPU, and the partition."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A GPU or partition that pods can book shares of."""

    gpu: Gpu
    partition: Partition
    shares: int
    """How many pods may share it, at least 1."""
    memory_scale: float
    """What its memory is booked by, at least 1."""

    @property
    def place(self) -> Place:
        """What tells it from every other, as in a share's slices."""
        return self.gpu.pci, self.partition.index

    @property
    def hard(self) -> bool:
        """Whether it is a partition that one pod has alone."""
        return self.gpu.partitioned and self.shares == 1

    @property
    def id(self) -> str:
        """What HAMi calls it: no ``,``, ``:`` or ``;``, and the same after a reboot.

        A GPU goes by its AMD SMI UUID, a partition by its GPU's unique id and its number, and what
        has no unique id by its PCI address. A hard unit's id ends with ``#`` and the mode.
        """
        place = f"PCI-{self.gpu.pci.replace(':', '-')}"
        if not self.gpu.partitioned:
            return self.gpu.uuid or place
        base = f"GPU-{self.gpu.unique_id:016x}" if self.gpu.unique_id else place
        mode = f"#{self.gpu.compute_mode}" if self.hard else ""
        return f"{base}-{self.partition.index}{mode}"

    @property
    def device_ids(self) -> tuple[str, ...]:
        """What kubelet calls its shares: by PCI address, at most 63 characters, and stable.

        Those of a partition have its mode in them: in another mode it is something else.
        """
        part = f":{self.partition.index}:{self.gpu.compute_mode}" if self.gpu.partitioned else ""
        return tuple(f"{self.gpu.pci}{part}#{number}" for number in range(self.shares))

    @property
    def bookable(self) -> bool:
        """Whether HAMi's scheduler can book of it: it counts CUs and memory, so both are known."""
        return bool(self.partition.cus and self.memory_mib)

    @property
    def atom(self) -> int:
        """CUs that can only be booked together: all of them, where the GPU's atom is not known."""
        return self.partition.atom or self.partition.cus

    @property
    def memory_mib(self) -> int:
        """MiB of memory that can be booked, more than there is where memory is scaled."""
        return int(self.partition.memory_bytes // MIB * self.memory_scale)

    def resource(self, naming: Naming) -> str:
        """Return the resource it is counted under.

        ``mixed`` names partitions by their compute and memory mode, ``amd.com/cpx_nps4``, as AMD's
        plugin does.
        """
        modes = "_".join(mode for mode in (self.gpu.compute_mode, self.gpu.memory_mode) if mode)
        named = naming == "mixed" and self.gpu.partitioned and self.gpu.compute_mode != UNKNOWN
        return f"amd.com/{modes}" if named else RESOURCE


def units(node: Node, split_count: int | None, memory_scale: float = 1.0) -> tuple[Unit, ...]:
    """Return the units of a node, in the order of PCI addresses and partitions.

    Without a split count a GPU is shared by 10 pods, one of gfx12 by 2, and a partition by none.
    One that cannot be divided, as it is not known what a part of it comes to, is had whole.
    """
    return tuple(
        Unit(
            gpu,
            partition,
            (split_count or _default_shares(gpu, partition)) if divisible(partition) else 1,
            memory_scale,
        )
        for gpu in node.gpus
        for partition in gpu.partitions
    )


def _default_shares(gpu: Gpu, partition: Partition) -> int:
    if gpu.partitioned:
        return 1
    return SHARES_GFX12 if partition.gfx_target_version >= GFX12_VERSION else SHARES


def by_device_id(present: Iterable[Unit]) -> dict[str, Unit]:
    """Return the unit of each of kubelet's ids."""
    return {device_id: unit for unit in present for device_id in unit.device_ids}
