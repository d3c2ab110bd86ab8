"""Events of Kubernetes, which people see who describe a pod or a node."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cdi.errors import AmdCdiError
from deviceplugin.cluster import Cluster, Json
from deviceplugin.deadline import Deadline
from deviceplugin.log import log
from deviceplugin.pods import Pod
from deviceplugin.refusal import told
from deviceplugin.retries import Retries

SOURCE = "amd-device-plugin"

MAX_MESSAGE = 1024
"""Characters that Kubernetes takes."""

TRY_SECONDS = 300.0

MOST_TOLD = 1000
"""Things remembered as told."""

UNHEALTHY = "AMDGPUUnhealthy"
MISSING = "AMDGPUMissing"
RECOVERED = "AMDGPURecovered"
MODE_CHANGED = "AMDGPUModeChangedInUse"
REFUSED = "AMDGPUShareRefused"
MALFORMED = "AMDGPUAnnotationMalformed"


@dataclass(frozen=True, slots=True)
class Events:
    """Writes events when it can be done; without a cluster it does not."""

    cluster: Cluster | None
    retries: Retries
    node: str
    told: set[tuple[str, str]] = field(default_factory=set)

    def about_pod(self, pod: Pod, reason: str, message: str) -> None:
        """Write a warning about a pod."""
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        }
        self._write(pod.namespace, involved, reason, message, "Warning")

    def about_malformed(self, pod: Pod, error: AmdCdiError) -> None:
        """Say once that the annotations of a pod cannot be used, in the log and to the user."""
        key = (pod.uid, str(error))
        if key not in self.told:
            if len(self.told) >= MOST_TOLD:
                self.told.clear()
            self.told.add(key)
            log.warning("the annotations of pod %s are of no use: %s", pod, error)
            self.about_pod(pod, MALFORMED, told(error))

    def about_node(self, reason: str, message: str) -> None:
        """Write an event about this node, a warning unless something recovered."""
        # Kubelet's own events name the node as its uid, and kubectl looks for that.
        involved = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node}
        kind = "Normal" if reason == RECOVERED else "Warning"
        self._write("default", involved, reason, message, kind)

    def _write(self, namespace: str, involved: Json, reason: str, message: str, kind: str) -> None:
        cluster = self.cluster
        if cluster is None:
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{involved['name']}.{uuid.uuid4().hex[:16]}",
                "namespace": namespace,
            },
            "involvedObject": involved,
            "reason": reason,
            "message": message[:MAX_MESSAGE],
            "type": kind,
            "source": {"component": SOURCE, "host": self.node},
            "reportingComponent": SOURCE,
            "reportingInstance": self.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.retries.add(
            f"the event {reason} of {involved['name']}",
            lambda: cluster.create_event(namespace, event, Deadline.after(3.0)),
            TRY_SECONDS,
        )
