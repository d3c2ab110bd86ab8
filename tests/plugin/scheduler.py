"""HAMi's scheduler, as far as the plugin meets it: it books from the node's annotation and locks.

The arithmetic is HAMi's: CUs are ``max(1, floor(devcore * percent / 100))``, rounded up to whole
multiples of ``cuPerWGP`` and capped at ``devcore``.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tests.plugin.api_server import ApiServer

Json = dict[str, Any]

NODE = "gpu-node"


@dataclass(frozen=True)
class Ask:
    """What a container asks for; ``gpus`` 0 is a container without a GPU."""

    name: str = "main"
    gpus: int = 1
    cores: int = 100
    memory: int = 0
    """MiB, 0 for all."""
    kind: str = "app"


class Annotated(Protocol):
    """An API server, this folder's or a real one."""

    def annotations(self, node: str) -> Json: ...


def registered(server: Annotated) -> list[Json]:
    return json.loads(server.annotations(NODE)["hami.io/node-amd-register"])


def book(device: Json, ask: Ask) -> str:
    cus = max(1, device["devcore"] * ask.cores // 100)
    atom = device.get("custominfo", {}).get("cuPerWGP", 1)
    cus = min(-(-cus // atom) * atom, device["devcore"])
    memory = ask.memory or device.get("devmem", 0)
    return f"{device['id']},{device['type']},{memory},{cus}:"


def bind(
    server: ApiServer,
    name: str,
    asks: list[Ask],
    devices: list[list[Json]] | None = None,
    *,
    lock: bool = True,
    lock_text: str | None = None,
    namespace: str = "default",
    uid: str = "",
) -> Json:
    """Create a pod as the webhook and the scheduler leave it when kubelet sees it."""
    document = pod(name, asks, namespace=namespace, uid=uid)
    document["metadata"]["annotations"] = {
        **placed(slots_of(asks, devices, registered(server))),
        **allocating(),
    }
    # There is no lock of a pod that does not exist yet.
    added = server.add_pod(document)
    if lock:
        text = lock_text if lock_text is not None else locked(namespace, name)
        server.annotate_node(NODE, {"hami.io/mutex.lock": text})
    return added


def slots_of(asks: list[Ask], devices: list[list[Json]] | None, known: list[Json]) -> str:
    """Book for each ask the devices in its place, by default the first ones of those known."""
    slots = ""
    for index, ask in enumerate(asks):
        chosen = devices[index] if devices else known[: ask.gpus]
        slots += "".join(book(device, ask) for device in chosen[: ask.gpus]) + ";"
    return slots


def placed(slots: str) -> dict[str, str]:
    """What the scheduler writes into a pod when it has chosen the node."""
    return {
        "hami.io/vgpu-node": NODE,
        "hami.io/amd-devices-to-allocate": slots,
        "hami.io/amd-devices-allocated": slots,
    }


def allocating() -> dict[str, str]:
    """What it writes once the node's lock is the pod's."""
    return {"hami.io/bind-time": str(int(time.time())), "hami.io/bind-phase": "allocating"}


def locked(namespace: str, name: str) -> str:
    """The node's lock while this pod is allocated."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{stamp},{namespace},{name}"


def pod(name: str, asks: list[Ask], *, namespace: str = "default", uid: str = "") -> Json:
    """Return a pod that no scheduler but Kubernetes' own has seen."""
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": uid or str(uuid.uuid4()),
            "managedFields": [{"manager": "x" * 2000}],
        },
        "spec": {
            "nodeName": NODE,
            "initContainers": [container(ask) for ask in asks if ask.kind != "app"],
            "containers": [container(ask) for ask in asks if ask.kind == "app"],
        },
        "status": {"phase": "Pending"},
    }


def container(ask: Ask) -> Json:
    document: Json = {"name": ask.name, "image": "x"}
    if ask.gpus:
        document["resources"] = {
            "limits": {"amd.com/gpu": str(ask.gpus), "amd.com/gpucores": str(ask.cores)}
        }
    if ask.kind == "sidecar":
        document["restartPolicy"] = "Always"
    return document
