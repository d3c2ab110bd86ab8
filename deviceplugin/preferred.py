"""Which of kubelet's device ids to hand out together.

GPUs are few, so the choice is made among them: from each GPU as the first, the nearest one is
added until there is enough, and the tightest of these groups wins. What is interchangeable, the
partitions of a GPU and the shares of a unit, is taken in order of how full it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from deviceplugin.devices import Unit, by_device_id

Policy = Literal["besteffort", "binpack", "spread"]

# Distances between GPUs. What counts is their order, and that one step of the slower kind weighs
# more than any of the faster.
XGMI, XGMI_OTHER_NUMA, PCIE, PCIE_OTHER_NUMA = 1, 2, 10, 20


def choose(
    units: Iterable[Unit],
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    policy: Policy,
) -> list[str]:
    """Return up to ``size`` of the available ids, among them those that must be included.

    No other is of a unit that has given one: a container that asks for two wants two GPUs, and gets
    fewer ids if there are not enough. Ids that are no unit's are ignored.
    """
    units = tuple(units)
    owners = by_device_id(units)
    chosen = [device_id for device_id in dict.fromkeys(must_include) if device_id in owners][:size]
    held = [owners[device_id] for device_id in chosen]
    had = {unit.place for unit in held}
    listed = set(available)
    free = {
        unit.place: ids
        for unit in units
        if unit.place not in had
        and (ids := [device_id for device_id in unit.device_ids if device_id in listed])
    }
    fresh = [unit for unit in units if unit.place in free]
    order = _spread if policy == "spread" else _pack
    return [
        *chosen,
        *(free[unit.place][0] for unit in order(fresh, free, held, size - len(chosen))),
    ]


Free = Mapping[tuple[str, int], Sequence[str]]


def _pack(fresh: Sequence[Unit], free: Free, held: Sequence[Unit], wanted: int) -> list[Unit]:
    """Return up to ``wanted`` units close to each other and to those held, fuller ones first."""
    gpus: dict[str, list[Unit]] = {}
    for unit in fresh:
        gpus.setdefault(unit.gpu.pci, []).append(unit)
    used = {
        pci: sum(unit.shares - len(free[unit.place]) for unit in members)
        for pci, members in gpus.items()
    }
    for members in gpus.values():
        members.sort(key=lambda unit: len(free[unit.place]) - unit.shares)
    near = _distances([*fresh, *held])
    best: tuple[tuple[int, int, int], list[Unit]] | None = None
    for position, first in enumerate(gpus):
        taken = list(dict.fromkeys(unit.gpu.pci for unit in held))
        picked: list[Unit] = []
        cost = 0
        rest = dict(gpus)
        pci = first
        while rest and len(picked) < wanted:
            # A whole group on one more GPU: each of its pairs with the others counts once.
            members = rest.pop(pci)[: wanted - len(picked)]
            cost += sum(near[pci][other] for other in taken if other != pci) * len(members)
            picked += members
            taken.append(pci)
            missing = wanted - len(picked)
            pci = min(
                rest,
                key=lambda other: (
                    sum(near[other][one] for one in taken),
                    -min(len(rest[other]), missing),
                    -used[other],
                ),
                default="",
            )
        fullness = -sum(used[unit.gpu.pci] for unit in picked)
        key = (cost, fullness, position)
        if best is None or key < best[0]:
            best = (key, picked)
    return best[1] if best else []


def _spread(fresh: Sequence[Unit], free: Free, held: Sequence[Unit], wanted: int) -> list[Unit]:
    """Return up to ``wanted`` units, emptier GPUs first and one of each before a second."""
    used: dict[str, int] = {}
    for unit in fresh:
        used[unit.gpu.pci] = used.get(unit.gpu.pci, 0) + unit.shares - len(free[unit.place])
    turns: dict[str, int] = {}
    for unit in held:
        turns[unit.gpu.pci] = turns.get(unit.gpu.pci, 0) + 1
    picked: list[Unit] = []
    rest = list(fresh)
    while rest and len(picked) < wanted:
        unit = min(
            rest,
            key=lambda one: (
                turns.get(one.gpu.pci, 0),
                used[one.gpu.pci],
                one.shares - len(free[one.place]),
            ),
        )
        rest.remove(unit)
        picked.append(unit)
        turns[unit.gpu.pci] = turns.get(unit.gpu.pci, 0) + 1
    return picked


def _distances(units: Iterable[Unit]) -> dict[str, dict[str, int]]:
    """Return how far apart GPUs are, by PCI addresses."""
    gpus = {unit.gpu.pci: unit.gpu for unit in units}
    table: dict[str, dict[str, int]] = {}
    for pci, gpu in gpus.items():
        row = table[pci] = {}
        for other_pci, other in gpus.items():
            near = gpu.numa_node == other.numa_node
            if pci == other_pci:
                row[other_pci] = 0
            elif other_pci in gpu.xgmi_peers:
                row[other_pci] = XGMI if near else XGMI_OTHER_NUMA
            else:
                row[other_pci] = PCIE if near else PCIE_OTHER_NUMA
    return table
