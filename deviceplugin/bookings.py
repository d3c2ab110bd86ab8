"""What the annotations of a pod ask for, and what they say it has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cdi import cumask
from cdi.plan import planner
from cdi.plan.amount import ALL, MIB, Amount
from cdi.plan.planner import Want
from cdi.plan.share import Share, Slice
from deviceplugin.devices import Place, Unit
from deviceplugin.pods import FAILED, Container, Pod, pod_uid, share_prefix
from deviceplugin.refusal import ELSEWHERE, Refusal
from deviceplugin.slots import Booking, Slots, decode


def containers_of(slots: Slots, containers: Sequence[Container]) -> list[Container]:
    """Return the container of each slot.

    Older schedulers leave out the slots of leading containers, so fewer slots belong to the last
    containers. Raises Refusal if there are more slots than containers.
    """
    if len(slots) > len(containers):
        raise Refusal(
            f"a slot for each of {len(containers)} containers was expected, found {len(slots)}",
            "create the pod anew, without annotations of hami.io",
        )
    return list(containers[len(containers) - len(slots) :])


def next_slot(slots: Slots) -> int | None:
    """Return the first slot that is still to be served; None if all are."""
    return next((index for index, slot in enumerate(slots) if slot), None)


def unit_of(booking: Booking, units: Iterable[Unit]) -> Unit:
    """Return the unit that a booking names; raises Refusal if the node has none such."""
    for unit in units:
        if _names(booking, unit):
            return unit
    raise Refusal(
        f"HAMi booked the GPU {booking.id!r}, and this node has none of that id",
        f"create the pod anew, or {ELSEWHERE}",
    )


def places(bookings: Iterable[Booking], units: Iterable[Unit]) -> frozenset[Place]:
    """Return where the units are that bookings name."""
    wanted = tuple(bookings)
    return frozenset(unit.place for unit in units if any(_names(one, unit) for one in wanted))


def _names(booking: Booking, unit: Unit) -> bool:
    # A scheduler that has seen the node with another split count knows another ending.
    return unit.id.partition("#")[0] == booking.id.partition("#")[0]


def is_whole(booking: Booking, unit: Unit) -> bool:
    """Whether a booking is all of its unit."""
    return booking.memory_mib == unit.memory_mib and booking.cus == unit.partition.cus


def want(booking: Booking, unit: Unit) -> Want:
    """Return what a booking asks the planner for."""
    if is_whole(booking, unit):
        return Want(unit.gpu, unit.partition)
    if not booking.cus or (unit.memory_mib and not booking.memory_mib):
        raise Refusal(
            f"HAMi booked {booking.cus} CUs and {booking.memory_mib} MiB of GPU {booking.id!r}, "
            "and a share needs some of both",
            "ask for both amd.com/gpucores and amd.com/gpumem",
        )
    everything = booking.memory_mib == unit.memory_mib and unit.memory_scale == 1
    memory = ALL if everything else Amount(booking.memory_mib * MIB, percent=False)
    return Want(unit.gpu, unit.partition, Amount(booking.cus, percent=False), memory)


def held_cus(pod_uid: str, shares: Iterable[Share], units: Iterable[Unit]) -> str:
    """Return the annotation of the CUs that a pod's shares have: ids to CU lists, as JSON."""
    prefix = share_prefix(pod_uid)
    held: dict[tuple[str, int], int] = {}
    for share in shares:
        if share.name.startswith(prefix):
            for slice_ in share.slices:
                place = slice_.place
                held[place] = held.get(place, 0) | slice_.cus
    # Nothing is told of one that is had whole because its CUs are not known.
    told = {unit.id: held[unit.place] for unit in units if held.get(unit.place)}
    return json.dumps(
        {unit_id: cumask.format_cus(cus) for unit_id, cus in sorted(told.items())},
        separators=(",", ":"),
    )


def parse_cus(text: str) -> dict[str, int]:
    """Return the CU sets of an annotation; raises Refusal if it is not one."""
    try:
        document = json.loads(text)
        return {str(unit_id): cumask.parse_cus(cus) for unit_id, cus in document.items()}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Refusal(
            f"an object of GPU ids and CU lists was expected, found {text[:80]!r}: {error}",
            "delete the pod, so that its share is given back",
        ) from error


def served(pod: Pod) -> list[tuple[Container, tuple[Booking, ...]]]:
    """Return the containers whose slots have been served, with what was booked for them.

    Raises Refusal if the annotations are malformed or do not belong together.
    """
    booked = decode(pod.allocated)
    waiting = decode(pod.to_allocate) if pod.to_allocate else ((),) * len(booked)
    if len(waiting) != len(booked):
        raise Refusal(
            f"as many slots to allocate as allocated were expected, found {len(waiting)} and "
            f"{len(booked)}",
            "create the pod anew, without annotations of hami.io",
        )
    owners = containers_of(booked, pod.containers)
    return [
        (container, slot)
        for container, slot, rest in zip(owners, booked, waiting, strict=True)
        if slot and not rest
    ]


def rebuilt(pod: Pod, units: Sequence[Unit], living: Iterable[Share]) -> tuple[Share, ...]:
    """Return the shares of a pod that are not among the living ones, from its annotations.

    The annotation has the pod's total of each GPU: containers that share one get their parts of it
    in their order. Raises Refusal if the annotations do not tell, or tell of CUs that
    another share has.
    """
    found: list[Share] = []
    known = list(living)
    names = {share.name for share in known}
    pool = parse_cus(pod.cu_allocated) if pod.cu_allocated else {}
    for container, bookings in served(pod):
        share = Share(pod.share_name(container), (), before=pod.later(container))
        if share.name in names:
            continue
        others = [other for other in known if not share.takes_turns_with(other)]
        booked = [(booking, unit_of(booking, units)) for booking in bookings]
        share = replace(
            share,
            slices=tuple(_slice(booking, unit, pool, others) for booking, unit in booked),
            oversubscribed=any(unit.memory_scale > 1 for _, unit in booked),
        )
        known.append(share)
        found.append(share)
    return tuple(found)


def _slice(booking: Booking, unit: Unit, pool: Mapping[str, int], others: Iterable[Share]) -> Slice:
    gpu, partition = unit.gpu, unit.partition
    taken = 0
    for share in others:
        for slice_ in share.slices:
            if slice_.place == unit.place:
                taken |= slice_.reserved
    if not unit.bookable:
        raise Refusal(
            f"HAMi booked a part of GPU {booking.id!r}, and it is not known any more how many CUs "
            "and how much memory it has",
            "delete the pod, so that it is scheduled anew",
        )
    atom = partition.atom or partition.cus
    everything = cumask.span(0, partition.cus)
    told = pool.get(unit.id, pool.get(booking.id, 0))
    if is_whole(booking, unit):
        told = free = everything & ~taken
        size = partition.cus
    else:
        free = cumask.whole_atoms(told & everything & ~taken, partition.cus, atom)
        size = max(atom, booking.cus // atom * atom)
    if free.bit_count() < size:
        raise Refusal(
            f"{size} CUs of GPU {booking.id!r} were expected to be this pod's, and of those that "
            f"are told ({cumask.format_cus(told) or 'none'}) {free.bit_count()} are no other's",
            "delete the pod, so that it is scheduled anew",
        )
    memory = want(booking, unit).memory.of(partition.memory_bytes)
    cus = planner.choose(free, size) if size < partition.cus else free
    return Slice(gpu.pci, partition.index, gpu.compute_mode, gpu.unique_id, cus, memory)


def living(shares: Iterable[Share], pods: Iterable[Pod]) -> tuple[Share, ...]:
    """Return the shares but those of pods that have ended or are gone."""
    alive = {pod.uid for pod in pods if not pod.ended}
    return tuple(share for share in shares if (uid := pod_uid(share.name)) is None or uid in alive)


def reconciled(
    shares: Iterable[Share], pods: Iterable[Pod], units: Sequence[Unit], *, starting: bool
) -> tuple[tuple[Share, ...], list[tuple[Pod, Refusal]]]:
    """Return the shares that live, in order of name, and the pods whose annotations are of no use.

    Shares of pods that are gone or have ended go. What pods' annotations say they have, and the
    ledger does not know, comes back. When ``starting``, no allocation is under way, so a share
    whose slot still waits is one that kubelet never got.
    """
    alive = {pod.uid: pod for pod in pods if not pod.ended}
    kept = []
    for share in shares:
        uid = pod_uid(share.name)
        if uid is None or (
            uid in alive and not (starting and _interrupted(alive[uid], share.name))
        ):
            kept.append(share)
    useless = []
    for pod in alive.values():
        if not pod.allocated or pod.bind_phase == FAILED:
            continue
        try:
            kept += rebuilt(pod, units, kept)
        except Refusal as error:
            useless.append((pod, error))
    return tuple(sorted(kept, key=lambda share: share.name)), useless


def _interrupted(pod: Pod, share_name: str) -> bool:
    if not pod.allocated or not pod.to_allocate:
        return False
    try:
        waiting = decode(pod.to_allocate)
        owners = containers_of(waiting, pod.containers)
    except Refusal:
        return False
    return any(
        slot and pod.share_name(container) == share_name
        for container, slot in zip(owners, waiting, strict=True)
    )
