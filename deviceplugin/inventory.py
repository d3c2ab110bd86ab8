"""What the node offers at this moment, and who waits to hear of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cdi.plan.names import label
from deviceplugin import preferred
from deviceplugin import v1beta1_pb2 as api
from deviceplugin.devices import RESOURCE, Naming, Place, Unit, by_device_id
from deviceplugin.preferred import Policy
from deviceplugin.refusal import ELSEWHERE, Refusal

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


@dataclass(frozen=True, slots=True)
class State:
    """The units of the node."""

    units: tuple[Unit, ...] = ()
    """Those that are there."""
    missing: tuple[Unit, ...] = ()
    """Those that were there before and whose GPU is gone: kubelet hears that they are unhealthy."""
    faults: dict[Place, str] = field(default_factory=dict)
    """What is wrong with units that are there, by place."""

    @property
    def known(self) -> tuple[Unit, ...]:
        """Return all units that shares may be of."""
        return (*self.units, *self.missing)


class Inventory:
    """The state, with a number that changes with it."""

    def __init__(self, naming: Naming, policy: Policy) -> None:
        self._changed = threading.Condition()
        self._naming = naming
        self._policy = policy
        self._state = State()
        self._number = 0

    @property
    def state(self) -> State:
        """The units as they are now."""
        return self._state

    @property
    def resources(self) -> frozenset[str]:
        """The resources that the units are counted under; there is one without any, too."""
        state = self._state
        named = {unit.resource(self._naming) for unit in state.known}
        return frozenset(named or {RESOURCE})

    def become(self, state: State) -> bool:
        """Take a new state; say whether it is another one."""
        with self._changed:
            if state == self._state:
                return False
            self._state = state
            self._number += 1
            self._changed.notify_all()
            return True

    def listed(self, resource: str) -> tuple[int, list[api.Device]]:
        """Return kubelet's devices of a resource, and the number they are as of."""
        with self._changed:
            state, number = self._state, self._number
        devices = []
        for unit in state.known:
            if unit.resource(self._naming) != resource:
                continue
            healthy = unit.place not in state.faults and unit not in state.missing
            numa = unit.gpu.numa_node
            topology = None
            if numa is not None:
                topology = api.TopologyInfo(nodes=[api.NUMANode(ID=numa)])
            devices += [
                api.Device(
                    ID=device_id, health=HEALTHY if healthy else UNHEALTHY, topology=topology
                )
                for device_id in unit.device_ids
            ]
        return number, devices

    def await_change(self, seen: int, cancelled: Callable[[], bool]) -> None:
        """Return when the number is another one, or when woken and cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._number != seen or cancelled())

    def wake(self) -> None:
        """Let those that await a change see whether they are cancelled."""
        with self._changed:
            self._changed.notify_all()

    def alike(self, unit: Unit) -> list[Unit]:
        """Return the units of the node that are counted under the same resource as this one."""
        resource = unit.resource(self._naming)
        return [other for other in self._state.units if other.resource(self._naming) == resource]

    def choose(
        self,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        without: Collection[Place] = (),
    ) -> list[str]:
        """Return ids to hand out: of different units, and of none in these places."""
        state = self._state
        owners = by_device_id(state.units)
        free = [one for one in available if one in owners and owners[one].place not in without]
        return preferred.choose(state.units, free, must_include, size, self._policy)

    def require_health(self, unit: Unit) -> None:
        """Raise Refusal if a unit is not healthy."""
        fault = self._state.faults.get(unit.place)
        if fault:
            raise Refusal(
                f"GPU {label(unit.gpu, unit.partition)} is not healthy: {fault}", ELSEWHERE
            )


class Allocator(Protocol):
    """Who decides what kubelet is answered with."""

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which of the available ids to hand out, or fewer; raises AmdCdiError."""

    def allocate(self, device_ids: Sequence[str]) -> Sequence[str]:
        """Return the names of CDI devices; raises AmdCdiError."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the inventory, as kubelet's service needs it."""

    name: str
    inventory: Inventory
    allocator: Allocator

    def listed(self) -> tuple[int, Sequence[api.Device]]:
        """Return the devices and the number they are as of."""
        return self.inventory.listed(self.name)

    def await_change(self, seen: int, cancelled: Callable[[], bool]) -> None:
        """Return when the number is another one, or when woken and cancelled."""
        self.inventory.await_change(seen, cancelled)

    def wake(self) -> None:
        """Let those that await a change see whether they are cancelled."""
        self.inventory.wake()

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return the ids to hand out."""
        return self.allocator.prefer(available, must_include, size)

    def allocate(self, device_ids: Sequence[str]) -> Sequence[str]:
        """Return the CDI devices for a container."""
        return self.allocator.allocate(device_ids)
