"""Keeps ledger and spec to the pods that there are."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

from cdi.errors import AmdCdiError, PermanentError
from cdi.plan.share import Share
from cdi.state.ledger import Ledger
from deviceplugin import bookings, nodelock, pods
from deviceplugin.cluster import Cluster
from deviceplugin.deadline import Deadline
from deviceplugin.events import Events
from deviceplugin.inventory import Inventory
from deviceplugin.log import log, some
from deviceplugin.pods import Pod, Pods, share_prefix
from deviceplugin.reservations import Reservations
from deviceplugin.retries import Retries

COLLECT_SECONDS = 24 * 3600.0
"""How long giving a share back is tried: for as long as a disk may be full."""


@dataclass(slots=True)
class Reconciler:
    """Is told what the watch of pods finds out, and changes the reservations accordingly."""

    reservations: Reservations
    inventory: Inventory
    cluster: Cluster
    pods: Pods
    chores: Retries
    """For the reservations, so that they do not wait for the API server."""
    retries: Retries
    events: Events
    turn: threading.Lock
    node: str
    done: threading.Event = field(default_factory=threading.Event)
    """Set once ledger, spec and pods agree for the first time."""
    queued: bool = False

    def listed(self, began: float) -> None:  # noqa: ARG002 -- the pods know what came later
        """Adopt and drop shares after all pods have been listed."""
        try:
            self.reconcile()
        except AmdCdiError as error:
            log.warning("ledger and pods are brought together later: %s", error)
            self.chores.add("reconcile", self.reconcile, COLLECT_SECONDS)

    def ended(self, pod: Pod) -> None:
        """Give the shares of a pod back soon, and the lock that it may have left behind."""
        if pod.bind_phase == pods.ALLOCATING and pod.vgpu_node == self.node:
            task = partial(self._release, pod)
            self.retries.add(f"release the lock of pod {pod}", task, nodelock.EXPIRE_SECONDS)
        if self.queued:
            return
        if self.reservations.read().of_prefix(share_prefix(pod.uid)):
            self.queued = True
            self.chores.add("give shares back", self._collect, COLLECT_SECONDS)

    def again(self) -> None:
        """Bring ledger and pods together soon, as GPUs have come or gone."""
        if self.pods.complete.is_set():
            self.chores.add("reconcile", self.reconcile, COLLECT_SECONDS)

    def reconcile(self) -> None:
        """Make the reservations what the pods say; raises AmdCdiError."""
        if not self.reservations.node.gpus:
            # A spec without a device is none; it is looked at again when a GPU has come.
            self.done.set()
            return
        began = time.monotonic()
        useless: list[tuple[Pod, PermanentError]] = []
        starting = not self.done.is_set()
        with self.turn:
            known = self.pods.all()
            units = self.inventory.state.units

            def change(ledger: Ledger) -> Ledger:
                shares, found = bookings.reconciled(ledger.shares, known, units, starting=starting)
                useless[:] = found
                return Ledger(shares, ledger.options)

            before = self.reservations.read().shares
            after = self.reservations.change(change).ledger
        _tell(before, after.shares)
        for pod, error in useless:
            self.events.about_malformed(pod, error)
        if starting:
            for pod in known:
                self._repair(pod, after)
            task = self._release_left
            self.retries.add("release a lock that was left", task, nodelock.EXPIRE_SECONDS)
        self.done.set()
        took = time.monotonic() - began
        log.info("ledger and pods agree on %d shares, in %.2f s", len(after.shares), took)

    def _collect(self) -> None:
        """Give back the shares of pods that have ended or are gone."""
        self.queued = False
        if not self.reservations.node.gpus:
            return
        with self.turn:
            known = self.pods.all()

            def change(ledger: Ledger) -> Ledger:
                return Ledger(bookings.living(ledger.shares, known), ledger.options)

            before = self.reservations.read().shares
            if not self.pods.complete.is_set() or bookings.living(before, known) == before:
                return
            after = self.reservations.change(change).ledger.shares
        _tell(before, after)

    def _release(self, pod: Pod) -> None:
        """Fail a pod that ended while it was allocated, as when this process was away."""
        deadline = Deadline.after(10.0)
        seen = nodelock.seen(self.cluster.node(self.node, deadline))
        document = self.cluster.pod(pod.namespace, pod.name, deadline)
        if document is not None:
            present = pods.parse(document)
            if present.uid != pod.uid:
                # The lock is that of a later pod of the same name.
                return
            if present.bind_phase == pods.ALLOCATING:
                phase = {pods.BIND_PHASE: pods.FAILED}
                self.cluster.patch_pod(pod.namespace, pod.name, pod.uid, phase, deadline)
        held = seen.lock
        if held is not None and (held.namespace, held.pod) == (pod.namespace, pod.name):
            nodelock.release(self.cluster, self.node, held, seen, deadline)

    def _release_left(self) -> None:
        """Release the lock of a pod that has all it waits for, or waits no more.

        The process that served it died before it did so.
        """
        deadline = Deadline.after(10.0)
        seen = nodelock.seen(self.cluster.node(self.node, deadline))
        held = seen.lock
        if held is None or not held.pod:
            return
        document = self.cluster.pod(held.namespace, held.pod, deadline)
        pod = pods.parse(document) if document is not None else None
        if pod is None or pod.ended or pod.bind_phase == pods.SUCCESS:
            nodelock.release(self.cluster, self.node, held, seen, deadline)

    def _repair(self, pod: Pod, ledger: Ledger) -> None:
        """Write again what a pod has, where its annotation says something else."""
        if not pod.allocated or pod.ended or not pod.cu_allocated:
            return
        units = self.inventory.state.known
        places = {unit.place for unit in units}
        own = ledger.of_prefix(share_prefix(pod.uid))
        told = bookings.held_cus(pod.uid, own, units)
        if not own or told == pod.cu_allocated:
            return
        if any(one.place not in places for share in own for one in share.slices):
            return
        log.warning("pod %s says it has the CUs %s, and has %s", pod, pod.cu_allocated, told)
        task = partial(self._write_cus, pod, told)
        self.retries.add(f"the CUs of pod {pod}", task, nodelock.EXPIRE_SECONDS)

    def _write_cus(self, pod: Pod, told: str) -> None:
        self.cluster.patch_pod(
            pod.namespace, pod.name, pod.uid, {pods.CU_ALLOCATED: told}, Deadline.after(10.0)
        )


def _tell(before: tuple[Share, ...], after: tuple[Share, ...]) -> None:
    old, new = ({share.name for share in shares} for shares in (before, after))
    for names, what in (
        (new - old, "adopted %d shares that their pods' annotations tell of: %s"),
        (old - new, "gave back %d shares of pods that have ended: %s"),
    ):
        if names:
            log.info(what, len(names), some(names))
