"""What one container holds of the node's GPUs, as plain immutable data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdi import cumask
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu, Partition
from cdi.plan.amount import format_bytes

HINT = "restore the GPU, or remove the share"


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
    """CU set, a union of whole atoms, or all CUs of the partition; empty if it is all of one whose
    CUs are not known."""
    memory: int
    """Bytes of memory; 0 if it is all of a partition whose memory is not known."""

    @property
    def reserved(self) -> int:
        """The CUs that no other may have at the same time; where none are known, one for all."""
        return self.cus or 1

    @property
    def extent(self) -> str:
        """What it is, for people."""
        count = self.cus.bit_count()
        cus = f"{count} CUs ({cumask.format_cus(self.cus)})" if self.cus else "all CUs"
        return f"{cus}, {format_bytes(self.memory) if self.memory else 'all memory'}"

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
        return cumask.whole_atoms(self.cus, self.partition.cus, self.atom)

    @property
    def atom(self) -> int:
        """CUs that can only be granted together: all, where the partition's atom is not known."""
        return self.partition.atom or self.partition.cus

    @property
    def whole(self) -> bool:
        """Whether it is all of the partition, so that there is nothing to hold it to."""
        # What a share had of a memory that is not known now may have been a part of it.
        has = self.partition.memory_bytes
        all_memory = self.memory >= has if has else not self.memory
        return self.cus == cumask.span(0, self.partition.cus) and all_memory


def resolve(share: Share, gpus: Mapping[str, Gpu]) -> tuple[Grant, ...]:
    """Find the slices of a share among a node's GPUs by PCI address, in the order of the share.

    Raises PermanentError if a GPU is gone, exchanged or repartitioned, or if the CU set or the
    memory is not legal for it: such a share cannot be enforced.
    """
    grants = tuple(_grant(share, slice_, gpus) for slice_ in share.slices)
    require_known(share, grants)
    for slice_, grant in zip(share.slices, grants, strict=True):
        _require_legal(share, slice_, grant)
    return grants


def require_known(share: Share, grants: Sequence[Grant]) -> None:
    """Raise PermanentError if what a share is held to is not known of one of its GPUs.

    One that is all of its GPUs is held to nothing.
    """
    if all(grant.whole for grant in grants) and not share.oversubscribed:
        return
    for slice_, grant in zip(share.slices, grants, strict=True):
        some_cus = grant.cus != cumask.span(0, grant.partition.cus)
        require_divisible(grant.partition, _where(share, slice_), some_cus=some_cus)


def require_divisible(partition: Partition, where: str, *, some_cus: bool) -> None:
    """Raise PermanentError if something is not known of a partition that a part is held to.

    With ``some_cus`` it is a part of its CUs as well. Who has but a part of the memory needs to
    know of the CUs too, as every share that is held to something has a mask.
    """
    unknown = [
        what
        for known, what in (
            (partition.cus, "how many CUs it has"),
            (partition.memory_bytes, "how much memory it has"),
            (partition.atom or not some_cus, "which of its CUs can only be granted together"),
        )
        if not known
    ]
    if unknown:
        raise PermanentError(
            f"{where} can only be had whole and alone, as it is not known {' and '.join(unknown)}",
            "ask for all of it; `amd-cdi topology` names what the kernel does not tell",
        )


def _grant(share: Share, slice_: Slice, gpus: Mapping[str, Gpu]) -> Grant:
    where = _where(share, slice_)
    gpu = gpus.get(slice_.pci)
    if gpu is None:
        raise PermanentError(f"{where} was expected, and the node has none there now", HINT)
    if gpu.unique_id != slice_.unique_id:
        raise PermanentError(
            f"{where} was expected to have unique id {slice_.unique_id:016x}, "
            f"found {gpu.unique_id:016x}: it is another GPU",
            HINT,
        )
    partition = next((part for part in gpu.partitions if part.index == slice_.partition), None)
    if partition is None or gpu.compute_mode != slice_.mode:
        raise PermanentError(
            f"{where} was expected in mode {slice_.mode or 'unpartitioned'} with a partition "
            f"{slice_.partition}, found mode {gpu.compute_mode or 'unpartitioned'} with "
            f"{len(gpu.partitions)}",
            HINT,
        )
    return Grant(gpu, partition, slice_.cus, slice_.memory)


def _require_legal(share: Share, slice_: Slice, grant: Grant) -> None:
    """Raise PermanentError if a grant is more than its GPU has, or cannot be held to."""
    where = _where(share, slice_)
    fault = cumask.fault(grant.cus, grant.partition.cus, grant.atom)
    if fault and not grant.whole:
        cus = cumask.format_cus(grant.cus) or "of nothing"
        raise PermanentError(f"{where}: its CU set {cus}: {fault}", HINT)
    has = grant.partition.memory_bytes
    if has and not grant.memory:
        # As when its memory was not known while the share was made. No limit would be set.
        raise PermanentError(f"{where} has {has} bytes of memory, and the share says none", HINT)
    if grant.memory > has > 0 and not share.oversubscribed:
        raise PermanentError(
            f"{where}: {grant.memory} bytes of memory were booked, and it has {has}", HINT
        )


def _where(share: Share, slice_: Slice) -> str:
    return f"share {share.name!r}: GPU {slice_.pci}"
