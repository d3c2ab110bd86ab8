"""The pods of this node that have to do with GPUs, kept current by a watch.

Of a pod no more is kept than is used, and of the other pods nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, Protocol

from deviceplugin.cluster import ApiError, Cluster, Json
from deviceplugin.deadline import Deadline
from deviceplugin.log import log

NODE = "hami.io/vgpu-node"
BIND_TIME = "hami.io/bind-time"
BIND_PHASE = "hami.io/bind-phase"
TO_ALLOCATE = "hami.io/amd-devices-to-allocate"
ALLOCATED = "hami.io/amd-devices-allocated"
CU_ALLOCATED = "hami.io/amd-cu-allocated"

ALLOCATING, SUCCESS, FAILED = "allocating", "success", "failed"

ENDED = frozenset({"Succeeded", "Failed"})

AMOUNTS = frozenset(
    {"amd.com/gpucores", "amd.com/gpumem", "amd.com/gpumem-percentage", "amd.com/priority"}
)
"""Resources that say how much of a GPU, not how many."""

LIST_SECONDS = 30.0
RETRY_SECONDS = (0.2, 10.0)
"""First and longest pause after a failure."""

Kind = Literal["init", "sidecar", "app"]


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod."""

    name: str
    kind: Kind
    """A sidecar is an init container that is restarted and so never ends before the others."""
    gpus: int
    """Devices that it asks kubelet for."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What is used of a pod."""

    uid: str
    namespace: str
    name: str
    resource_version: int
    created: str
    phase: str
    vgpu_node: str
    bind_time: str
    bind_phase: str
    to_allocate: str
    allocated: str
    """Empty on a pod that HAMi did not schedule."""
    cu_allocated: str
    containers: tuple[Container, ...]
    """Init containers first."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in ENDED

    def share_name(self, container: Container) -> str:
        """Return the CDI device of a container."""
        return f"{share_prefix(self.uid)}{container.name}"

    def later(self, container: Container) -> tuple[str, ...]:
        """Return the shares of containers that start only when this one has ended."""
        if container.kind != "init":
            return ()
        behind = self.containers[self.containers.index(container) + 1 :]
        return tuple(self.share_name(other) for other in behind if other.gpus)


def share_prefix(uid: str) -> str:
    """Return what the shares of a pod's containers are called first."""
    return f"pod-{uid}."


def pod_uid(share_name: str) -> str | None:
    """Return the pod that a share belongs to; None for one that no pod has."""
    prefix, dot, _ = share_name.partition(".")
    return prefix.removeprefix("pod-") if dot and prefix.startswith("pod-") else None


def parse(document: Json) -> Pod:
    """Return a pod of the API."""
    metadata = document.get("metadata") or {}
    spec = document.get("spec") or {}
    status = document.get("status") or {}
    annotations = metadata.get("annotations") or {}
    inits = [
        _container(entry, "sidecar" if entry.get("restartPolicy") == "Always" else "init")
        for entry in spec.get("initContainers") or ()
    ]
    apps = [_container(entry, "app") for entry in spec.get("containers") or ()]
    return Pod(
        uid=str(metadata.get("uid") or ""),
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        resource_version=_number(str(metadata.get("resourceVersion") or "")),
        created=str(metadata.get("creationTimestamp") or ""),
        phase=str(status.get("phase") or ""),
        vgpu_node=str(annotations.get(NODE) or ""),
        bind_time=str(annotations.get(BIND_TIME) or ""),
        bind_phase=str(annotations.get(BIND_PHASE) or ""),
        to_allocate=str(annotations.get(TO_ALLOCATE) or ""),
        allocated=str(annotations.get(ALLOCATED) or ""),
        cu_allocated=str(annotations.get(CU_ALLOCATED) or ""),
        containers=(*inits, *apps),
    )


def _number(version: str) -> int:
    """Return a version as the number that it is, 0 if it is none."""
    return int(version) if version.isascii() and version.isdecimal() else 0


def _container(entry: Json, kind: Kind) -> Container:
    limits = (entry.get("resources") or {}).get("limits") or {}
    gpus = sum(
        int(count)
        for name, count in limits.items()
        if name.startswith("amd.com/") and name not in AMOUNTS and str(count).isdecimal()
    )
    return Container(str(entry.get("name") or ""), kind, gpus)


class Pods:
    """The pods by uid, and what is known of those that are gone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pods: dict[str, Pod] = {}
        self._fresh: dict[str, Pod] = {}
        """Those put here while a list was under way, which it may not know."""
        self._number = 0
        self.complete = threading.Event()
        """Set once all pods of the node are known."""

    def all(self) -> tuple[Pod, ...]:
        """Return all of them, the oldest first."""
        with self._changed:
            pods = list(self._pods.values())
        return tuple(sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name)))

    def named(self, namespace: str, name: str) -> Pod | None:
        """Return the latest pod of this name; None if there is none."""
        with self._changed:
            for pod in reversed(self._pods.values()):
                if pod.name == name and pod.namespace == namespace:
                    return pod
        return None

    def put(self, pod: Pod) -> None:
        """Note a pod as it is now, unless a later state of it is known."""
        with self._changed:
            known = self._pods.get(pod.uid)
            if known is None or known.resource_version <= pod.resource_version:
                if not pod.allocated and not any(one.gpus for one in pod.containers):
                    self._pods.pop(pod.uid, None)
                    return
                self._pods[pod.uid] = pod
                self._fresh[pod.uid] = pod
                self._number += 1
                self._changed.notify_all()

    def remove(self, uid: str) -> None:
        """Note that a pod is gone."""
        with self._changed:
            self._pods.pop(uid, None)
            self._fresh.pop(uid, None)
            self._number += 1
            self._changed.notify_all()

    def begin(self) -> None:
        """Note that a list is under way."""
        with self._changed:
            self._fresh.clear()

    def replace(self, pods: Iterable[Pod], version: int) -> None:
        """Take the list as all that there was at a version, besides what was put here since.

        Of what was put here and is no later than the list, and not in it, the watch will never tell
        that it is gone.
        """
        listed = {
            pod.uid: pod
            for pod in pods
            if pod.allocated or any(container.gpus for container in pod.containers)
        }
        with self._changed:
            for uid, pod in self._fresh.items():
                known = listed[uid].resource_version if uid in listed else version
                if known < pod.resource_version:
                    listed[uid] = pod
            self._pods = listed
            self._number += 1
            self._changed.notify_all()
        self.complete.set()

    @property
    def number(self) -> int:
        """A number that is another one whenever a pod has changed."""
        return self._number

    def await_change(self, seen: int, seconds: float) -> None:
        """Wait until the number is another one, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._number != seen, seconds)


class Observer(Protocol):
    """Who is told what the watch finds out, after the pods are what it says."""

    def listed(self, began: float) -> None:
        """All pods are known as they were at a time (of the monotonic clock) or later."""

    def ended(self, pod: Pod) -> None:
        """Containers of a pod will never run again, as it has ended or is gone."""


class PodWatch:
    """Keeps pods current for as long as the process lives."""

    def __init__(self, cluster: Cluster, node: str, pods: Pods, observer: Observer) -> None:
        self._cluster = cluster
        self._node = node
        self._pods = pods
        self._observer = observer
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Let ``run`` end when the watch next says something."""
        self._stopping.set()

    def run(self) -> None:
        """List and watch until stopped."""
        pause, longest = RETRY_SECONDS
        told = ""
        version = ""
        while not self._stopping.is_set():
            try:
                if not version:
                    version = self._list()
                began = time.monotonic()
                version = self._watch(version)
                if time.monotonic() - began < pause:
                    self._stopping.wait(pause)
            except ApiError as error:
                if error.status == HTTPStatus.GONE:
                    version = ""
                    continue
                # A watch that breaks is nothing to speak of until it cannot be begun again.
                if pause > RETRY_SECONDS[0] and error.message != told:
                    told = error.message
                    log.warning("the pods of this node are not followed now: %s", told)
                self._stopping.wait(max(error.wait_seconds, pause))
                pause = min(2 * pause, longest)
            else:
                pause, told = RETRY_SECONDS[0], ""

    def _list(self) -> str:
        began = time.monotonic()
        self._pods.begin()
        found: list[Pod] = []
        token = ""
        while True:
            page = self._cluster.list_pods(self._node, token, Deadline.after(LIST_SECONDS))
            found += map(parse, page.items)
            token = page.token
            if not token:
                break
        self._pods.replace(found, _number(page.resource_version))
        self._observer.listed(began)
        for pod in found:
            if pod.ended:
                self._observer.ended(pod)
        return page.resource_version

    def _watch(self, version: str) -> str:
        """Follow the events from a version on until the server ends the watch."""
        with self._cluster.watch_pods(self._node, version) as events:
            for event in events:
                if self._stopping.is_set():
                    break
                document = event.get("object") or {}
                if event.get("type") == "ERROR":
                    status = int(document.get("code") or 0)
                    raise ApiError(
                        f"the watch of pods ended: {document.get('message') or status}", status
                    )
                version = (document.get("metadata") or {}).get("resourceVersion") or version
                if event.get("type") == "BOOKMARK":
                    continue
                pod = parse(document)
                if event.get("type") == "DELETED":
                    self._pods.remove(pod.uid)
                    self._observer.ended(pod)
                    continue
                self._pods.put(pod)
                if pod.ended:
                    self._observer.ended(pod)
        return version
