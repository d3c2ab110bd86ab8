"""Allocate: kubelet asks for devices, HAMi decided what they are, the answer is a CDI name.

Kubelet does not say for which pod it asks. While the node is locked the lock names the pod.
Everything is bounded: the work, and what has to be undone when it fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from cdi.errors import AmdCdiError, PermanentError, TemporaryError
from cdi.plan import planner
from cdi.plan.planner import Want
from cdi.plan.share import Share
from cdi.state.ledger import Ledger
from cdi.state.specs import NodeSpecs
from deviceplugin import bookings, events, nodelock, pods
from deviceplugin.cluster import ApiError, Cluster, Json
from deviceplugin.deadline import Deadline
from deviceplugin.devices import Place
from deviceplugin.events import Events
from deviceplugin.inventory import Inventory
from deviceplugin.log import log
from deviceplugin.nodelock import Held, Seen
from deviceplugin.pods import Container, Pod, Pods, share_prefix
from deviceplugin.refusal import ELSEWHERE, Refusal, told
from deviceplugin.reservations import Reservations
from deviceplugin.retries import Retries
from deviceplugin.runtime import Runtime
from deviceplugin.slots import Booking, Slots, decode, emptied, encode
from deviceplugin.whole import free_units, taken

PREFER_SECONDS = 0.5
WORK_SECONDS = 4.5
FIND_SECONDS = 3.0
"""How long the pod may take to come along in the watch when no lock names it."""
READ_BACK_SECONDS = 1.0
CLEAN_SECONDS = 1.5
"""These add up to less than 10 s, which is what an Allocate takes at most."""


def _slots(pod: Pod) -> Slots:
    """Return the slots of a pod that wait; none if nobody can tell."""
    try:
        return decode(pod.to_allocate)
    except Refusal:
        return ()


def _asked(pod: Pod, count: int) -> tuple[Booking, ...]:
    """Return the next slot of a pod, if kubelet would ask for so many devices for it."""
    slots = _slots(pod)
    index = bookings.next_slot(slots)
    return slots[index] if index is not None and len(slots[index]) == count else ()


@dataclass(slots=True)
class _Target:
    """The pod that kubelet asks for, and the node as it was when it was found."""

    pod: Pod
    seen: Seen
    container: Container | None
    """The container of a pod that HAMi did not schedule."""
    remembered: bool = False
    """Whether the pod is as the watch told of it last, so that it may have changed since."""
    told: bool = False
    """Whether its annotations say what it gets."""

    @property
    def lock(self) -> Held | None:
        """The lock that has to be released for this pod; None if it is another's."""
        held = self.seen.lock
        own = (self.pod.namespace, self.pod.name)
        if held is None or (held.pod and (held.namespace, held.pod) != own):
            return None
        return held


@dataclass(slots=True)
class Hami:
    """Answers with what HAMi's scheduler booked for the pod that is being allocated."""

    reservations: Reservations
    inventory: Inventory
    runtime: Runtime
    cluster: Cluster
    node: str
    pods: Pods
    retries: Retries
    releases: Retries
    """For the node's lock alone, which waits for nothing else."""
    events: Events
    turn: threading.Lock
    """Held by whoever looks at pods and reservations together."""
    memory_scale: float

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return ids of what HAMi booked, if a pod waits for it, and otherwise of free GPUs.

        So kubelet's ids say for most pods what they are on; ``allocate`` does not depend on it.
        """
        units = self.inventory.state.units
        patience = Deadline.after(PREFER_SECONDS)
        while True:
            number = self.pods.number
            for pod in filter(self._waits, self.pods.all()):
                booked = bookings.places(_asked(pod, size), units)
                if booked:
                    others = {unit.place for unit in units} - booked
                    return self.inventory.choose(available, must_include, size, without=others)
            # Some pod asks for so many; the watch may tell of it a little later than kubelet's.
            if self._asks_whole(size) is not None or not patience.left:
                break
            self.pods.await_change(number, patience.left)
        occupied = taken(self.reservations.read().shares) | self._booked()
        return self.inventory.choose(available, must_include, size, without=occupied)

    def allocate(self, device_ids: Sequence[str]) -> Sequence[str]:
        """Return the share of the container that kubelet asks for."""
        work = Deadline.after(WORK_SECONDS)
        if not self.turn.acquire(timeout=work.left):
            raise TemporaryError(
                f"the allocation before this one has not ended for {WORK_SECONDS:.0f} s"
            )
        try:
            target = self._find(device_ids, work)
            try:
                try:
                    return [self._give(target, device_ids, work)]
                except PermanentError:
                    # A pod that has been told waits no more: another one would be found.
                    if target.told or not target.remembered:
                        raise
                    target = self._find(device_ids, work, remembering=False)
                    return [self._give(target, device_ids, work)]
            except AmdCdiError as error:
                self._fail(target, error)
                error.message = f"pod {target.pod}: {error.message}"
                raise
        finally:
            self.turn.release()

    # Whose turn it is

    def _find(
        self, device_ids: Sequence[str], work: Deadline, *, remembering: bool = True
    ) -> _Target:
        seen = nodelock.seen(self.cluster.node(self.node, work))
        if seen.lock is not None and seen.lock.pod:
            known = self.pods.named(seen.lock.namespace, seen.lock.pod) if remembering else None
            if known and self._waits(known) and _asked(known, len(device_ids)):
                return _Target(known, seen, None, remembered=True)
            try:
                document = self.cluster.pod(seen.lock.namespace, seen.lock.pod, work)
            except ApiError:
                self._later("fail the node's lock", partial(self._fail_owner, seen.lock))
                raise
            if document is not None:
                owner = pods.parse(document)
                self.pods.put(owner)
                if self._waits(owner):
                    count = len(device_ids)
                    plain = None if _asked(owner, count) else self._plain(seen, count)
                    return plain or _Target(owner, seen, None)
        patience = Deadline.after(min(FIND_SECONDS, work.left))
        while True:
            number = self.pods.number
            target = self._pending(seen, work) or self._plain(seen, len(device_ids))
            if target is not None:
                return target
            if not patience.left:
                break
            self.pods.await_change(number, patience.left)
        raise Refusal(
            f"a pod of node {self.node} that waits for {len(device_ids)} GPU(s) was expected, and "
            "neither the node's lock nor the pods' annotations name one",
            "create the pod anew",
        )

    def _waits(self, pod: Pod) -> bool:
        """Whether HAMi is allocating this pod here, and not all of its slots have been served."""
        return (
            pod.bind_phase == pods.ALLOCATING
            and pod.vgpu_node == self.node
            and not pod.ended
            and bool(pod.to_allocate.strip(";"))
        )

    def _pending(self, seen: Seen, work: Deadline) -> _Target | None:
        """Return the pod that has been bound first of those that are being allocated."""
        waiting = sorted(filter(self._waits, self.pods.all()), key=lambda pod: pod.bind_time)
        for known in waiting:
            try:
                decode(known.to_allocate)
            except Refusal as error:
                self.events.about_malformed(known, error)
                continue
            document = self.cluster.pod(known.namespace, known.name, work)
            if document is not None:
                pod = pods.parse(document)
                self.pods.put(pod)
                if pod.uid == known.uid and self._waits(pod):
                    return _Target(pod, seen, None)
        return None

    def _plain(self, seen: Seen, count: int) -> _Target | None:
        """Return the oldest pod that waits for so many GPUs and that HAMi did not schedule."""
        found = self._asks_whole(count)
        return None if found is None else _Target(found[0], seen, found[1])

    def _asks_whole(self, count: int) -> tuple[Pod, Container] | None:
        """Return the oldest such pod, and the container that has none of them yet."""
        shares = {share.name for share in self.reservations.read().shares}
        for pod in self.pods.all():
            if pod.phase != "Pending" or pod.allocated:
                continue
            for container in pod.containers:
                if container.gpus == count and pod.share_name(container) not in shares:
                    return pod, container
        return None

    # What it gets

    def _give(self, target: _Target, device_ids: Sequence[str], work: Deadline) -> str:
        self.runtime.require_cdi()
        if target.container is not None:
            return self._whole(target.pod, target.container, device_ids)
        return self._slot(target, device_ids, work)

    def _whole(self, pod: Pod, container: Container, device_ids: Sequence[str]) -> str:
        name, before = pod.share_name(container), pod.later(container)

        def plan(living: tuple[Share, ...]) -> Share:
            occupied = taken(living, Share(name, (), before=before)) | self._booked()
            chosen = free_units(device_ids, self.inventory, occupied)
            wants = [Want(unit.gpu, unit.partition) for unit in chosen]
            return planner.plan(name, wants, living, before=before)

        self._reserve(name, plan)
        log.info("gave %s of pod %s whole GPUs for %s", container.name, pod, ", ".join(device_ids))
        return name

    def _booked(self) -> frozenset[Place]:
        """Return where pods that HAMi is allocating will have their shares."""
        waiting = filter(self._waits, self.pods.all())
        booked = [booking for pod in waiting for slot in _slots(pod) for booking in slot]
        return bookings.places(booked, self.inventory.state.units)

    def _slot(self, target: _Target, device_ids: Sequence[str], work: Deadline) -> str:
        pod = target.pod
        slots = decode(pod.to_allocate)
        index = bookings.next_slot(slots)
        if index is None:
            raise Refusal("a slot that waits was expected", "create the pod anew")
        container = bookings.containers_of(slots, pod.containers)[index]
        slot = slots[index]
        if len(slot) != len(device_ids):
            raise Refusal(
                f"kubelet asked for {len(device_ids)} GPU(s), and HAMi booked {len(slot)} for "
                f"container {container.name!r}",
                "create the pod anew",
            )
        wants = []
        for booking in slot:
            unit = bookings.unit_of(booking, self.inventory.state.units)
            self.inventory.require_health(unit)
            wants.append(bookings.want(booking, unit))
        name, before = pod.share_name(container), pod.later(container)
        rest = emptied(slots, index)
        self._reserve(
            name,
            lambda living: planner.plan(name, wants, living, self.memory_scale, before),
            lambda ledger: self._tell(target, rest, ledger, work),
        )
        if bookings.next_slot(rest) is None and target.lock is not None:
            # Behind the answer: the scheduler waits for it, and kubelet does not.
            task = partial(self._release, target.lock, target.seen)
            self.releases.add("release the node's lock", task, nodelock.EXPIRE_SECONDS)
        log.info("gave %s of pod %s the share %s", container.name, pod, name)
        return name

    def _reserve(
        self,
        name: str,
        plan: Callable[[tuple[Share, ...]], Share],
        tell: Callable[[Ledger], None] | None = None,
    ) -> None:
        """Write the share that is planned beside the living ones, if the cluster can be told."""

        def add(ledger: Ledger) -> Ledger:
            # One of this name is left of an attempt that kubelet never got the answer of.
            if ledger.share(name) is not None:
                ledger = ledger.without_share(name)
            try:
                return ledger.with_share(plan(ledger.shares))
            except PermanentError:
                # The scheduler books what pods that are gone had, which may not be back yet.
                living = bookings.living(ledger.shares, self.pods.all())
                if not self.pods.complete.is_set() or living == ledger.shares:
                    raise
                return Ledger(living, ledger.options).with_share(plan(living))

        def confirm(made: NodeSpecs) -> None:
            if not made.offers(name):
                log.error("%s cannot be offered: %s", name, "; ".join(made.warnings))
                raise Refusal(
                    f"the share {name} cannot be offered, as the log of this node's plugin tells",
                    ELSEWHERE,
                )
            if tell is not None:
                tell(made.ledger)

        self.reservations.change(add, confirm=confirm)

    def _tell(self, target: _Target, rest: Slots, ledger: Ledger, work: Deadline) -> None:
        """Write into the pod what it gets."""
        pod = target.pod
        own = ledger.of_prefix(share_prefix(pod.uid))
        annotations = {
            pods.CU_ALLOCATED: bookings.held_cus(pod.uid, own, self.inventory.state.known),
            pods.TO_ALLOCATE: encode(rest),
        }
        if bookings.next_slot(rest) is None:
            annotations[pods.BIND_PHASE] = pods.SUCCESS
        version = pod.resource_version if target.remembered else None
        try:
            document = self.cluster.patch_pod(
                pod.namespace, pod.name, pod.uid, annotations, work, version
            )
        except ApiError as error:
            document = self._read_back(pod, annotations, error)
        target.told = True
        self.pods.put(pods.parse(document))

    def _read_back(self, pod: Pod, annotations: Mapping[str, str], error: ApiError) -> Json:
        """Return the pod if it was told all the same, and the reply was lost; raises otherwise."""
        try:
            found = self.cluster.pod(pod.namespace, pod.name, Deadline.after(READ_BACK_SECONDS))
        except ApiError:
            # Nobody knows, so this is no reason to look for another pod.
            raise error from None
        if found is not None and found["metadata"].get("uid") == pod.uid:
            present = found["metadata"].get("annotations") or {}
            if annotations.items() <= present.items():
                return found
        if error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise Refusal(
                "it was changed or deleted while its GPUs were allocated", "create it anew"
            ) from error
        raise error

    # What has to be done in the end

    def _release(self, held: Held, seen: Seen) -> None:
        nodelock.release(self.cluster, self.node, held, seen, Deadline.after(10.0))

    def _later(self, what: str, task: Callable[[], None]) -> None:
        """Do it when the API server answers, or not at all once the lock is stale anyway."""
        self.retries.add(what, task, nodelock.EXPIRE_SECONDS)

    def _fail(self, target: _Target, error: AmdCdiError) -> None:
        """Tell HAMi and the user that a pod did not get its GPUs."""
        pod = target.pod
        self.events.about_pod(pod, events.REFUSED, told(error))
        if target.container is not None:
            return
        try:
            self._mark_failed(pod, target.lock, target.seen, Deadline.after(CLEAN_SECONDS))
        except ApiError as failure:
            log.warning("pod %s is marked as failed later: %s", pod, failure)
            self._later(f"mark pod {pod} as failed", partial(self._fail_late, pod, target.lock))

    def _mark_failed(self, pod: Pod, held: Held | None, seen: Seen, deadline: Deadline) -> None:
        # The pod may have been told of a share before its files could not be made durable.
        annotations = {
            pods.BIND_PHASE: pods.FAILED,
            pods.CU_ALLOCATED: pod.cu_allocated or None,
            pods.TO_ALLOCATE: pod.to_allocate or None,
        }
        try:
            self.cluster.patch_pod(pod.namespace, pod.name, pod.uid, annotations, deadline)
        except ApiError as error:
            # Of a pod that is gone nothing is left to be marked.
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise
        if held is not None:
            nodelock.release(self.cluster, self.node, held, seen, deadline)

    def _fail_late(self, pod: Pod, held: Held | None) -> None:
        deadline = Deadline.after(10.0)
        seen = nodelock.seen(self.cluster.node(self.node, deadline))
        self._mark_failed(pod, held, seen, deadline)

    def _fail_owner(self, held: Held) -> None:
        """Fail the pod of a lock, which could not be read when kubelet asked for its GPUs."""
        document = self.cluster.pod(held.namespace, held.pod, Deadline.after(10.0))
        if document is None:
            seen = nodelock.seen(self.cluster.node(self.node, Deadline.after(10.0)))
            self._release(held, seen)
        elif (pod := pods.parse(document)).bind_phase == pods.ALLOCATING:
            self._fail_late(pod, held)
