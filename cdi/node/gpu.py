"""What a machine has: its AMD GPUs and their partitions, as plain immutable data.

A GPU is a PCI device. What a process sees of it are its partitions: one, the whole GPU, where the
GPU is not partitioned (SPX, or a part without partition modes), and several in DPX, QPX or CPX.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdi import cumask
from cdi.node import memory


@dataclass(frozen=True, slots=True)
class Partition:
    """What ROCr sees as one GPU agent: a GPU node of the KFD topology with its DRM nodes."""

    index: int
    """Place among the partitions of its GPU, from 0."""
    kfd_node: int
    """Number of the KFD topology node; ROCr lists its agents in this order."""
    render_minor: int
    """Minor of ``/dev/dri/renderD<M>``."""
    card_minor: int | None
    """Minor of ``/dev/dri/card<N>``; None where the partition has no card node of its own."""
    gfx_target_version: int
    """KFD's number: major x 10000 + minor x 100 + stepping; 0 if it is not known."""
    cus: int
    """Active compute units; 0 if they are not known."""
    xccs: int
    """Accelerator complex dies behind this partition; 0 if they are not known."""
    queues: int
    """User compute queues (KFD ``num_cp_queues``), 0 if not told."""
    memory_bytes: int
    """Memory that HIP is offered here; 0 if it is not known."""
    memory_kind: memory.Kind
    """What it is: VRAM, or memory that the GPU shares with the CPUs, as most APUs have it."""

    @property
    def gfx(self) -> str:
        """Name of the instruction set, such as ``gfx942``; empty if it is not known."""
        if not self.gfx_target_version:
            return ""
        # The stepping is a hexadecimal digit.
        major, rest = divmod(self.gfx_target_version, 10000)
        minor, stepping = divmod(rest, 100)
        return f"gfx{major}{minor:x}{stepping:x}"

    @property
    def atom(self) -> int:
        """CUs that can only be granted together; 0 if what decides it is not known."""
        version = self.gfx_target_version
        return cumask.atom_size(version, self.xccs) if version and self.xccs else 0


@dataclass(frozen=True, slots=True)
class Gpu:
    """An AMD GPU: one PCI device that amdgpu drives and KFD lists."""

    index: int
    """Place among the node's GPUs in the order of their PCI addresses."""
    pci: str
    """PCI address, ``dddd:bb:dd.f`` in lower case."""
    device_id: int
    """PCI device id, 0 if it is not known."""
    revision: int
    product: str
    """Market name."""
    unique_id: int
    """ASIC serial (u64); 0 where the part has none, or where two GPUs claim the same one."""
    numa_node: int | None
    hive_id: int
    """XGMI hive, 0 for none."""
    xgmi_peers: tuple[str, ...]
    """PCI addresses of the GPUs that XGMI links reach, ascending."""
    compute_mode: str
    """Current compute partition mode in lower case (``spx``, ``cpx``).

    Empty if there are none, and ``unknown`` if there are and this one cannot be read.
    """
    compute_modes: tuple[str, ...]
    """Compute partition modes the GPU offers."""
    memory_mode: str
    """Current memory partition mode in lower case (``nps1``, …); empty if there are none."""
    memory_modes: tuple[str, ...]
    """Memory partition modes the GPU offers."""
    partitions: tuple[Partition, ...]
    """At least one, ascending by index."""

    @property
    def memory_bytes(self) -> int:
        """Memory that HIP is offered on all partitions; 0 if that of one is not known."""
        sizes = [partition.memory_bytes for partition in self.partitions]
        return sum(sizes) if all(sizes) else 0

    @property
    def uuid(self) -> str:
        """The UUID that AMD SMI prints, empty for a GPU whose unique or device id is not known.

        Built from the serial and the PCI device id as AMD SMI does.
        """
        serial = self.unique_id
        if not serial or not self.device_id:
            return ""
        return (
            f"{serial >> 56:02x}ff{self.device_id:04x}-0000-1000-80{serial >> 48 & 0xFF:02x}"
            f"-{serial >> 32 & 0xFFFF:04x}{serial & 0xFFFFFFFF:08x}"
        )

    @property
    def partitioned(self) -> bool:
        """Whether processes see partitions of the GPU instead of the GPU."""
        return len(self.partitions) > 1 or self.compute_mode not in {"", "spx"}

    @property
    def rocr_id(self) -> str:
        """What ROCR_VISIBLE_DEVICES can name this GPU by; empty where only its index will do.

        Partitions share the id of their GPU, so a partitioned GPU has none.
        """
        if not self.unique_id or self.partitioned:
            return ""
        return f"GPU-{self.unique_id:016x}"


@dataclass(frozen=True, slots=True)
class Unusable:
    """An AMD GPU of the machine that no container can have."""

    pci: str
    reason: str
    """What was found, what it means and what to do, in a line that begins with its name."""

    def __str__(self) -> str:
        return f"GPU {self.pci}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Node:
    """The AMD GPUs of a machine, ascending by PCI address, and what could not be read."""

    gpus: tuple[Gpu, ...]
    warnings: tuple[str, ...] = ()
    """One line for each file or device that costs something, naming it and what is lost."""
    unusable: tuple[Unusable, ...] = ()
    """GPUs that are held by another than amdgpu, or that have no render node."""
