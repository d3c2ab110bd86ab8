"""Watches the GPUs: those that come and go, are repartitioned, fall ill and recover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.errors import AmdCdiError, PermanentError
from cdi.files import names_in
from cdi.node import topology
from cdi.node.gpu import Node
from cdi.plan.names import label
from cdi.state.watch import gpu_signature
from deviceplugin import devices, events
from deviceplugin.devices import Unit
from deviceplugin.events import Events
from deviceplugin.inventory import Inventory, State
from deviceplugin.log import log
from deviceplugin.reservations import WAIT_SECONDS, Reservations

MAX_FILE = 4096


def read_node(sysroot: Path) -> Node:
    """Return the node; one without any GPU is not an error here. Raises TemporaryError."""
    try:
        return topology.read_node(sysroot)
    except PermanentError as error:
        log.warning("this node has no GPU that can be used: %s", error)
        return Node(())


def faults_of(units: Sequence[Unit], sysroot: Path) -> dict[tuple[str, int], str]:
    """Return what is wrong with units that the kernel lists, by place.

    A unit's device node has to be there, and its GPU's memory must have had no error that could
    not be corrected: the kernel's count starts anew when the GPU is reset.
    """
    folder = sysroot / "dev/dri"
    nodes = names_in(folder) if folder.is_dir() else None
    memory = {pci: memory_fault(pci, sysroot) for pci in {unit.gpu.pci for unit in units}}
    faults = {}
    for unit in units:
        node = f"renderD{unit.partition.render_minor}"
        lost = f"there is no {folder / node}" if nodes is not None and node not in nodes else ""
        fault = lost or memory[unit.gpu.pci]
        if fault:
            faults[unit.place] = fault
    return faults


def memory_fault(pci: str, sysroot: Path) -> str:
    """Return what is wrong with the memory of a GPU; empty if nothing is known."""
    for base in ("sys/bus/pci/drivers/amdgpu", "sys/module/amdgpu/drivers/pci:amdgpu"):
        count = sysroot / base / pci / "ras/umc_err_count"
        try:
            with count.open("rb") as file:
                text = file.read(MAX_FILE).decode("ascii", "replace")
        except OSError:
            continue
        for line in text.splitlines():
            kind, _, number = line.partition(":")
            if kind.strip() == "ue" and number.strip().isdecimal() and int(number):
                return f"{count} tells of {int(number)} memory errors that were not corrected"
        break
    return ""


def next_state(before: State, present: Sequence[Unit], faults: dict[tuple[str, int], str]) -> State:
    """Return the state after ``before``.

    A unit whose GPU is gone is kept as missing; one whose GPU is in another mode is not.
    """
    there = {unit.gpu.pci for unit in present}
    missing = tuple(unit for unit in (*before.units, *before.missing) if unit.gpu.pci not in there)
    return State(tuple(present), missing, faults)


@dataclass(slots=True)
class Health:
    """Looks at the GPUs time and again."""

    reservations: Reservations
    inventory: Inventory
    events: Events
    split_count: int | None
    memory_scale: float
    pulse: float
    """Seconds from look to look."""
    changed: Callable[[], None]
    """Called after the inventory has become another one."""
    seen: object = None

    def run(self, stopping: threading.Event) -> None:
        """Look until stopped."""
        while not stopping.wait(self.pulse or None):
            try:
                self.look()
            except AmdCdiError as error:
                self.seen = None
                log.warning("the GPUs cannot be looked at now: %s", error)
            except Exception as error:  # noqa: BLE001 -- the next look may go well
                self.seen = None
                log.error(
                    "unexpected %s while looking at the GPUs: %s", type(error).__name__, error
                )

    def look(self, seconds: float = WAIT_SECONDS) -> None:
        """Take the GPUs as they are now into the inventory, and into the spec if they changed."""
        sysroot = self.reservations.paths.sysroot
        seen = gpu_signature(sysroot)
        before = self.inventory.state
        present: Sequence[Unit] = before.units
        if seen != self.seen:
            node = read_node(sysroot)
            present = devices.units(node, self.split_count, self.memory_scale)
            if node.gpus:
                self.reservations.refresh(node, seconds)
            self.seen = seen
        self.reservations.put_right(seconds)
        faults = faults_of(present, sysroot)
        state = next_state(before, present, faults)
        if self.inventory.become(state):
            self._tell(before, state)
            self.changed()

    def _tell(self, before: State, after: State) -> None:
        """Log and write events about what changed."""
        ill = {unit.place: unit for unit in after.units if unit.place in after.faults}
        for unit in ill.values():
            fault = after.faults[unit.place]
            if before.faults.get(unit.place) != fault:
                self._say(events.UNHEALTHY, unit, f"is not healthy: {fault}")
        for unit in after.missing:
            if unit not in before.missing:
                self._say(events.MISSING, unit, "is gone")
        was_ill = {*before.faults, *(unit.place for unit in before.missing)}
        for unit in after.units:
            if unit.place in was_ill and unit.place not in ill:
                self._say(events.RECOVERED, unit, "is there and healthy again")
        self._tell_of_modes(before, after)

    def _tell_of_modes(self, before: State, after: State) -> None:
        modes = {unit.gpu.pci: unit.gpu.compute_mode for unit in before.units}
        for pci, gpu in {unit.gpu.pci: unit.gpu for unit in after.units}.items():
            if modes.get(pci, gpu.compute_mode) == gpu.compute_mode:
                continue
            holders = [
                share.name
                for share in self.reservations.read().shares
                if any(slice_.pci == pci for slice_ in share.slices)
            ]
            if holders:
                message = (
                    f"GPU {gpu.index} ({pci}) went from mode {modes[pci]} to {gpu.compute_mode} "
                    f"while these shares live on it: {', '.join(holders)}"
                )
                log.warning("%s", message)
                self.events.about_node(events.MODE_CHANGED, message)

    def _say(self, reason: str, unit: Unit, what: str) -> None:
        message = f"GPU {label(unit.gpu, unit.partition)} ({unit.gpu.pci}, {unit.id}) {what}"
        log.warning("%s", message)
        self.events.about_node(reason, message)
