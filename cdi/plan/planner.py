"""Places a share beside those that live on a node.

The rules, in the order in which they matter:

1. A CU set is a union of whole atoms. What is asked for is rounded down to them, so that a share
   never gets more than was booked; less than one atom is one atom.
2. No two shares of a partition have a CU in common, and their memory adds up to no more than the
   partition has (times the scale, if one above 1 is given).
3. The smallest free run that fits is taken, from its low end (the first of equals): large runs stay
   whole for large shares. If none fits, the largest runs are taken whole until the rest fits into
   one, which gives the fewest pieces. Where CUs lie matters little to the hardware, as consecutive
   atoms are spread over the shader engines anyhow, but pieces multiply: a share that lies in many
   leaves as many holes when it goes.

The same input gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdi import cumask
from cdi.errors import PermanentError
from cdi.node.gpu import Gpu, Node, Partition
from cdi.plan.amount import ALL, MAX_SCALE, MIB, Amount, format_mib
from cdi.plan.names import gpu_names, label, partition_names
from cdi.plan.options import STRATEGIES
from cdi.plan.share import Grant, Share, Slice, require_divisible, require_known


class NoRoomError(PermanentError):
    """More is asked for of a GPU than it can grant.

    What to ask for instead is said by who knows how it was asked for: by options of a command, or
    by resources of a pod.
    """

    def __init__(self, message: str, *, memory: bool, most: int, total: int) -> None:
        super().__init__(message)
        self.memory = memory
        """Whether it is about bytes of memory, and not about CUs."""
        self.most = most
        """How much of it could be granted."""
        self.total = total
        """How much the GPU has of it."""


@dataclass(frozen=True, slots=True)
class Want:
    """What is asked for on one partition."""

    gpu: Gpu
    partition: Partition
    cus: Amount = ALL
    memory: Amount = ALL


def find(node: Node, name: str) -> tuple[Gpu, Partition]:
    """Return the partition that a user names.

    A GPU is named by index, PCI address, AMD SMI UUID or ROCr id, a partition of it by appending
    ``:<partition>``. Raises PermanentError for an unknown name, and for a partitioned GPU.
    """
    for gpu in node.gpus:
        aliases = {alias.lower() for alias in (*gpu_names(gpu, STRATEGIES), gpu.rocr_id) if alias}
        if name.lower() in aliases and gpu.partitioned:
            raise PermanentError(
                f"GPU {name} is partitioned ({gpu.compute_mode or 'unknown mode'}): "
                "a share takes one of its partitions",
                f"name one of {', '.join(label(gpu, part) for part in gpu.partitions)}",
            )
        for partition in gpu.partitions:
            if name.lower() in partition_names(gpu, partition, STRATEGIES) or (
                name.lower() in aliases
            ):
                return gpu, partition
    have = [label(gpu, partition) for gpu in node.gpus for partition in gpu.partitions]
    shown = ", ".join(have[:16]) + (", …" if len(have) > 16 else "")
    raise PermanentError(f"no GPU {name!r} on this node", f"name one of {shown}")


def plan(
    name: str,
    wants: Sequence[Want],
    living: Iterable[Share],
    memory_scale: float = 1.0,
    before: tuple[str, ...] = (),
) -> Share:
    """Return the share of this name that gives each want its place beside the living shares.

    Shares that take turns with it are no hindrance: ``before`` names those that it precedes.
    Raises PermanentError, which says what is free, when one does not fit.
    """
    if not wants:
        raise PermanentError("a share needs at least one GPU", "name one with --gpu")
    if not 1 <= memory_scale <= MAX_SCALE:
        raise PermanentError(
            f"the memory scale is a number from 1 to {MAX_SCALE}, found {memory_scale}",
            "leave it out, or give 1 or more",
        )
    places = [(want.gpu.pci, want.partition.index) for want in wants]
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise PermanentError(
            f"GPU {twice[0]} is named more than once in share {name!r}", "name each GPU once"
        )
    taken: dict[tuple[str, int], tuple[int, int]] = dict.fromkeys(places, (0, 0))
    for share in living:
        for slice_ in share.slices:
            place = slice_.place
            if place in taken and share.name not in before and name not in share.before:
                cus, memory = taken[place]
                taken[place] = (cus | slice_.reserved, memory + slice_.memory)
    slices = tuple(
        _slice(want, *taken[place], memory_scale) for want, place in zip(wants, places, strict=True)
    )
    share = Share(name, slices, oversubscribed=memory_scale > 1, before=before)
    grants = [
        Grant(want.gpu, want.partition, slice_.cus, slice_.memory)
        for want, slice_ in zip(wants, slices, strict=True)
    ]
    require_known(share, grants)
    return share


def shortfalls(share: Share, wants: Sequence[Want]) -> list[str]:
    """Say where a share has not the CUs that its wants name, and why."""
    lines = []
    for want, slice_ in zip(wants, share.slices, strict=True):
        partition = want.partition
        asked, granted = want.cus.of(partition.cus), slice_.cus.bit_count()
        if asked != granted:
            share_of = f" ({want.cus} of {partition.cus})" if want.cus.percent else ""
            lines.append(
                f"GPU {label(want.gpu, partition)}: asked for {asked} CUs{share_of}, granted "
                f"{granted}, as CUs are granted in whole atoms of {partition.atom}"
            )
    return lines


def matches(share: Share, wants: Sequence[Want], memory_scale: float = 1.0) -> bool:
    """Whether a share is what the wants come to, wherever its CUs lie."""
    ideal = plan(share.name, wants, (), memory_scale)
    return _extents(share) == _extents(ideal) and share.oversubscribed == ideal.oversubscribed


def _extents(share: Share) -> list[tuple[str, int, int, int]]:
    return [
        (slice_.pci, slice_.partition, slice_.cus.bit_count(), slice_.memory)
        for slice_ in share.slices
    ]


def split(
    node: Node, parts: int, strategies: Sequence[str], living: Iterable[Share]
) -> tuple[Share, ...]:
    """Return ``parts`` equal shares of every partition that no living share has a part of.

    One of which it is not known what a part comes to is left out.

    They are named ``<gpu>-<k>of<parts>``, the GPU by the first strategy that has a name for it.
    What does not divide evenly is left over. Raises PermanentError if a partition has too few
    atoms.
    """
    if not parts:
        return ()
    taken = {slice_.place for share in living for slice_ in share.slices}
    shares = []
    for gpu in node.gpus:
        for partition in gpu.partitions:
            names = partition_names(gpu, partition, strategies)
            if not names or (gpu.pci, partition.index) in taken:
                continue
            if parts > 1 and not divisible(partition):
                continue
            atoms = partition.cus // (partition.atom or 1)
            if 1 < parts > atoms:
                raise PermanentError(
                    f"GPU {label(gpu, partition)} cannot be split into {parts}: it has "
                    f"{partition.cus} CUs, which can be granted in {atoms} atoms of "
                    f"{partition.atom}",
                    f"split into {atoms} or fewer",
                )
            size = atoms // parts * partition.atom
            memory = partition.memory_bytes // parts // MIB * MIB
            for k in range(parts):
                cus = cumask.span(k * size, size)
                if parts == 1:
                    cus, memory = cumask.span(0, partition.cus), partition.memory_bytes
                shares.append(
                    Share(
                        f"{names[0]}-{k + 1}of{parts}",
                        (_at(gpu, partition, cus, memory),),
                    )
                )
    return tuple(shares)


def divisible(partition: Partition) -> bool:
    """Whether all is known of a partition that its parts are held to."""
    return bool(partition.cus and partition.memory_bytes and partition.atom)


def _slice(want: Want, taken_cus: int, taken_memory: int, memory_scale: float) -> Slice:
    """Place one want beside what is taken of its partition."""
    partition = want.partition
    where = f"GPU {label(want.gpu, partition)} ({want.gpu.product})"
    _require_known(want, where)
    memory = _memory(want, where, memory_scale)
    total = int(partition.memory_bytes * memory_scale)
    available = max(0, total - taken_memory)
    if memory > available:
        raise NoRoomError(
            f"{where}: {format_mib(memory)} of memory was asked for, and "
            f"{format_mib(available)} of {format_mib(partition.memory_bytes)} is free",
            memory=True,
            most=available,
            total=total,
        )
    return _at(want.gpu, partition, _cus(want, taken_cus, memory, where), memory)


def _require_known(want: Want, where: str) -> None:
    """Raise PermanentError if what a part of a partition comes to is not known."""
    partition = want.partition
    parts = [
        amount != ALL and not 0 < whole == amount.of(whole)
        for amount, whole in ((want.cus, partition.cus), (want.memory, partition.memory_bytes))
    ]
    if any(parts):
        require_divisible(partition, where, some_cus=parts[0])


def _memory(want: Want, where: str, memory_scale: float) -> int:
    """Return the bytes a want comes to; a percentage other than all in whole MiB."""
    has = want.partition.memory_bytes
    memory = want.memory.of(has)
    if want.memory.percent and want.memory.value < 100:
        memory = memory // MIB * MIB
    total = int(has * memory_scale)
    if memory > total:
        raise NoRoomError(
            f"{where}: {format_mib(memory)} of memory was asked for, and the GPU has "
            f"{format_mib(has)}",
            memory=True,
            most=total,
            total=total,
        )
    return memory


def _cus(want: Want, taken: int, memory: int, where: str) -> int:
    """Return the CU set for a want beside the CUs that are taken."""
    partition = want.partition
    if not want.cus.percent and not 1 <= want.cus.value <= partition.cus:
        raise NoRoomError(
            f"{where}: a number of CUs from 1 to {partition.cus} was expected, "
            f"found {want.cus.value}",
            memory=False,
            most=partition.cus,
            total=partition.cus,
        )
    wanted = want.cus.of(partition.cus)
    everything = cumask.span(0, partition.cus)
    if wanted == partition.cus and memory >= partition.memory_bytes and not taken:
        # The whole GPU, which needs no mask, so a rest that fills no atom is granted as well.
        return everything
    if not partition.cus:
        raise PermanentError(
            f"{where}: all of it was asked for, and a share lives there", "remove that share"
        )
    atom = partition.atom or partition.cus
    size = max(atom, min(wanted, partition.cus) // atom * atom)
    free = cumask.whole_atoms(everything & ~taken, partition.cus, atom)
    if free.bit_count() < size:
        raise NoRoomError(
            f"{where}: {size} CUs were asked for, and {free.bit_count()} of {partition.cus} are "
            f"free in whole atoms of {atom}" + (f" ({cumask.format_cus(free)})" if free else ""),
            memory=False,
            most=free.bit_count(),
            total=partition.cus,
        )
    return choose(free, size)


def choose(free: int, size: int) -> int:
    """Return ``size`` CUs of the free ones: the best-fitting run, or else the fewest pieces.

    ``free`` consists of whole atoms, and ``size`` is at most its number of CUs.
    """
    chosen = 0
    runs = cumask.runs(free)
    while size:
        fitting = [run for run in runs if run[1] >= size]
        if fitting:
            first, _ = min(fitting, key=lambda run: run[1])
            return chosen | cumask.span(first, size)
        largest = max(runs, key=lambda run: run[1])
        runs.remove(largest)
        chosen |= cumask.span(*largest)
        size -= largest[1]
    return chosen


def _at(gpu: Gpu, partition: Partition, cus: int, memory: int) -> Slice:
    return Slice(gpu.pci, partition.index, gpu.compute_mode, gpu.unique_id, cus, memory)
