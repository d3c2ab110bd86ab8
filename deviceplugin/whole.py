"""Whole GPUs, for pods that HAMi's scheduler did not place.

Kubelet counts slots and knows nothing of shares. Where it can, ``GetPreferredAllocation`` lets it
take slots of GPUs on which nothing lives. But it need not follow: it keeps to its topology manager
before all, hands on what an init container had, and takes whatever slot is left. So its ids are
taken for what they are worth: they say how many GPUs are asked for, and which ones to prefer. Where
something lives on one of them, a free one of the same resource is given in its place.

The slots of a GPU with shares are not withheld from kubelet: the next pod that HAMi books on it
needs one of them, and kubelet would fail that pod for good. So a pod that asks for a whole GPU of a
node that has none left is placed there all the same, and refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from cdi.plan.names import label, partition_names
from cdi.plan.share import Share
from deviceplugin.devices import Place, Unit, by_device_id
from deviceplugin.inventory import Inventory
from deviceplugin.log import log
from deviceplugin.refusal import ELSEWHERE, Refusal
from deviceplugin.reservations import Reservations
from deviceplugin.runtime import Runtime


def taken(shares: Iterable[Share], beside: Share | None = None) -> frozenset[Place]:
    """Return where shares live, without those that take turns with the one that comes beside."""
    return frozenset(
        slice_.place
        for share in shares
        if beside is None or not share.takes_turns_with(beside)
        for slice_ in share.slices
    )


def free_units(
    device_ids: Sequence[str], inventory: Inventory, occupied: Collection[Place]
) -> list[Unit]:
    """Return as many free and healthy units as there are ids, those of the ids before others.

    Raises Refusal if there are not so many.
    """
    state = inventory.state
    owners = by_device_id(state.units)
    asked = dict.fromkeys(owned(device_ids, inventory))
    alike = inventory.alike(next(iter(asked)))
    free = [unit for unit in alike if unit.place not in {*occupied, *state.faults}]
    kept = [unit.device_ids[0] for unit in asked if unit in free]
    others = [unit.device_ids[0] for unit in free]
    chosen = inventory.choose(others, kept, len(device_ids))
    if len(chosen) < len(device_ids):
        raise Refusal(
            f"{len(device_ids)} whole GPU(s) were asked for, and {len(free)} of {len(alike)} are "
            "free and healthy",
            f"ask for a part of one by amd.com/gpucores and amd.com/gpumem, or {ELSEWHERE}",
        )
    return [owners[device_id] for device_id in chosen]


def owned(device_ids: Sequence[str], inventory: Inventory) -> list[Unit]:
    """Return the units of kubelet's ids; raises Refusal for one that is no unit's."""
    owners = by_device_id(inventory.state.units)
    for device_id in device_ids:
        if device_id not in owners:
            raise Refusal(
                f"kubelet asked for the device {device_id!r}, and this node has none such any more",
                f"create the pod anew, or {ELSEWHERE}",
            )
    return [owners[device_id] for device_id in device_ids]


@dataclass(frozen=True, slots=True)
class WholeGpus:
    """Answers without a cluster: the GPUs that kubelet chose, each one whole.

    Each of them is one slot. Which ones pods have kubelet alone knows, so that no other can be
    given in the place of one.
    """

    reservations: Reservations
    inventory: Inventory
    runtime: Runtime

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return ids of GPUs without shares."""
        occupied = taken(self.reservations.read().shares)
        return self.inventory.choose(available, must_include, size, without=occupied)

    def allocate(self, device_ids: Sequence[str]) -> Sequence[str]:
        """Return the GPUs of these ids; raises Refusal if one is not healthy or a share's."""
        self.runtime.require_cdi()
        chosen = owned(device_ids, self.inventory)
        occupied = taken(self.reservations.read().shares)
        for unit in chosen:
            self.inventory.require_health(unit)
            if unit.place in occupied:
                raise Refusal(
                    f"GPU {label(unit.gpu, unit.partition)} was asked for whole, and shares that "
                    "were made by command live on it",
                    ELSEWHERE,
                )
        names = [partition_names(unit.gpu, unit.partition, ("uuid", "pci"))[0] for unit in chosen]
        log.info("gave %s whole", ", ".join(names))
        return names
