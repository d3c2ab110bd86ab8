"""What one container holds of the node's GPUs, as plain immutable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdi import cumask
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu, Partition


@dataclass(frozen=True, slots=True)
class Slice:
    """What a share holds of one partition.

    It names the partition by what survives a reboot: minors and the order of GPUs do not.
    """

    pci: str
    """PCI address of the GPU."""
    partition: int
    """Index of the partition in its GPU."""
    mode: str
    """Compute partition mode the slice was planned in: in another one it means other CUs."""
    unique_id: int
    """ASIC serial of the GPU, 0 if it has none: another card in the same slot is not this one."""
    cus: int
    """CU set, a union of whole atoms, or all CUs of the partition."""
    memory: int
    """Bytes of VRAM; 0 on a partition without VRAM of its own."""

    @property
    def place(self) -> tuple[str, int]:
        """PCI address of the GPU, and index of the partition in it."""
        return self.pci, self.partition


@dataclass(frozen=True, slots=True)
class Share:
    """An ordered list of slices that one container gets as one CDI device."""

    name: str
    """Name of the CDI device, such as ``share-alice``."""
    slices: tuple[Slice, ...]
    """At least one; their order is the order in which the container sees its GPUs."""
    oversubscribed: bool = False
    """Whether memory was booked with a scale above 1, so that HIP may spill into system memory."""
    before: tuple[str, ...] = ()
    """Shares whose containers only start when this one's has ended, as after an init container."""

    def takes_turns_with(self, other: Share) -> bool:
        """Whether the containers of two shares never run at once, so that both may have a CU."""
        return other.name in self.before or self.name in other.before


@dataclass(frozen=True, slots=True)
class Grant:
    """A slice found on the node as it is now."""

    gpu: Gpu
    partition: Partition
    cus: int
    memory: int

    @property
    def mask_cus(self) -> int:
        """The CUs that a mask can grant of it: whole atoms."""
        return cumask.whole_atoms(self.cus, self.partition.cus, self.partition.atom)

    @property
    def whole(self) -> bool:
        """Whether it is all of the partition, so that there is nothing to hold it to."""
        return (
            self.cus == cumask.span(0, self.partition.cus)
            and self.memory >= self.partition.vram_bytes
        )


def resolve(share: Share, gpus: Mapping[str, Gpu]) -> tuple[Grant, ...]:
    """Find the slices of a share among a node's GPUs by PCI address, in the order of the share.

    Raises PermanentError if a GPU is gone, exchanged or repartitioned, or if the CU set or the
    memory is not legal for it: such a share cannot be enforced.
    """
    return tuple(_grant(share, slice_, gpus) for slice_ in share.slices)


def _grant(share: Share, slice_: Slice, gpus: Mapping[str, Gpu]) -> Grant:
    where = f"share {share.name!r}: GPU {slice_.pci}"
    hint = "restore the GPU, or remove the share"
    gpu = gpus.get(slice_.pci)
    if gpu is None:
        raise PermanentError(f"{where} was expected, and the node has none there now", hint)
    if gpu.unique_id != slice_.unique_id:
        raise PermanentError(
            f"{where} was expected to have unique id {slice_.unique_id:016x}, "
            f"found {gpu.unique_id:016x}: it is another GPU",
            hint,
        )
    partition = next((part for part in gpu.partitions if part.index == slice_.partition), None)
    if partition is None or gpu.compute_mode != slice_.mode:
        raise PermanentError(
            f"{where} was expected in mode {slice_.mode or 'unpartitioned'} with a partition "
            f"{slice_.partition}, found mode {gpu.compute_mode or 'unpartitioned'} with "
            f"{len(gpu.partitions)}",
            hint,
        )
    grant = Grant(gpu, partition, slice_.cus, slice_.memory)
    fault = cumask.fault(slice_.cus, partition.cus, partition.atom)
    if fault and not grant.whole:
        raise PermanentError(f"{where}: its CU set {cumask.format_cus(slice_.cus)}: {fault}", hint)
    vram = partition.vram_bytes
    if vram and not slice_.memory:
        # As when its VRAM could not be read while the share was made. No limit would be set.
        raise PermanentError(f"{where} has {vram} bytes of VRAM, and the share says none", hint)
    if slice_.memory > vram > 0 and not share.oversubscribed:
        raise PermanentError(
            f"{where}: {slice_.memory} bytes of memory were booked, and it has {vram}", hint
        )
    return grant
