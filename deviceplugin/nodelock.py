"""HAMi's lock on a node: ``hami.io/mutex.lock``, which names the pod that is being allocated.

The scheduler takes it when it binds a pod and regards it as stale after five minutes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from http import HTTPStatus

from deviceplugin.cluster import HEALING, ApiError, Cluster, Json
from deviceplugin.deadline import Deadline

ANNOTATION = "hami.io/mutex.lock"

EXPIRE_SECONDS = 300.0

# How HAMi itself tries again when somebody else changed the node.
STEPS, FIRST_SECONDS, FACTOR, JITTER = 5, 0.1, 2.0, 0.5


@dataclass(frozen=True, slots=True)
class Held:
    """The lock as it stood on the node."""

    text: str
    namespace: str
    pod: str
    """Empty, like the namespace, in the older form that names nobody."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The node as it was read."""

    resource_version: str
    lock: Held | None


def seen(node: Json) -> Seen:
    """Return the lock of a node."""
    metadata = node.get("metadata") or {}
    text = (metadata.get("annotations") or {}).get(ANNOTATION) or ""
    return Seen(metadata.get("resourceVersion") or "", parse(text))


def parse(text: str) -> Held | None:
    """Return the lock of an annotation ``RFC3339,namespace,pod`` or, older, ``RFC3339``."""
    if not text:
        return None
    _, namespace, pod = [*text.split(","), "", ""][:3]
    return Held(text, namespace, pod) if namespace and pod else Held(text, "", "")


def release(cluster: Cluster, node: str, held: Held, known: Seen, deadline: Deadline) -> None:
    """Take the lock off the node if it still is this one; raises ApiError if that fails.

    ``known`` saves a read when the node has not changed since. A lost reply is found out by
    reading the node again.
    """
    delay = FIRST_SECONDS
    current = known
    for step in range(STEPS):
        if current.lock is None or current.lock.text != held.text:
            return
        try:
            cluster.patch_node(node, {ANNOTATION: None}, deadline, current.resource_version)
        except ApiError as error:
            again = error.status == HTTPStatus.CONFLICT or error.status in HEALING
            jittered = delay * (1 + JITTER * random.random())  # noqa: S311
            # Somebody else's change is no reason to wait before looking what it was.
            pause = jittered if step or error.status != HTTPStatus.CONFLICT else 0.0
            if not again or step == STEPS - 1 or not deadline.sleep(max(error.wait_seconds, pause)):
                raise
        else:
            return
        delay *= FACTOR
        current = seen(cluster.node(node, deadline))
