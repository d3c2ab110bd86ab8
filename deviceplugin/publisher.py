"""Tells HAMi's scheduler what the node has, every 30 s and at once when it changes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from cdi.errors import AmdCdiError
from deviceplugin import registration
from deviceplugin.cluster import Cluster, persist
from deviceplugin.deadline import Deadline
from deviceplugin.inventory import Inventory
from deviceplugin.log import log

SECONDS = 30.0
RETRY_SECONDS = 5.0


@dataclass(slots=True)
class Publisher:
    """Writes the node's annotation."""

    cluster: Cluster
    node: str
    inventory: Inventory
    due: threading.Event = field(default_factory=threading.Event)
    told: str = ""
    writing: threading.Lock = field(default_factory=threading.Lock)
    withdrawn: bool = False

    def publish(self) -> None:
        """Write the annotation, or take it away when no GPU is left; raises ApiError."""
        state = self.inventory.state
        text = registration.encode(state.units, state.faults) if state.units else None
        deadline = Deadline.after(10.0)
        persist(lambda: self._write(text, deadline), deadline)

    def withdraw(self, seconds: float) -> None:
        """Take the annotation away: nothing can be allocated on a node without its plugin.

        What the scheduler has booked stays in the annotations of pods, and what it knows of the
        node stays in its memory for as long as kubelet counts the GPUs.
        """
        with self.writing:
            self.withdrawn = True
            try:
                self.cluster.patch_node(
                    self.node, {registration.ANNOTATION: None}, Deadline.after(seconds)
                )
            except AmdCdiError as error:
                log.warning("HAMi is not told that this node's plugin stops: %s", error)

    def run(self, stopping: threading.Event) -> None:
        """Publish until stopped."""
        while not stopping.is_set():
            self.due.clear()
            pause = SECONDS
            try:
                self.publish()
                self.told = ""
            except AmdCdiError as error:
                pause = RETRY_SECONDS
                if str(error) != self.told:
                    self.told = str(error)
                    log.warning("HAMi cannot be told of this node's GPUs now: %s", error)
            self.due.wait(pause)

    def _write(self, text: str | None, deadline: Deadline) -> None:
        with self.writing:
            if not self.withdrawn:
                self.cluster.patch_node(self.node, {registration.ANNOTATION: text}, deadline)
