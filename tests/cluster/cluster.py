"""A cluster of one node, as a test meets it: pods go in, and what their containers hold is seen."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import specs
from tests.cluster.api import PODS, Json
from tests.cluster.control import ControlPlane
from tests.cluster.node import Node
from tests.cluster.plugin import Plugin
from tests.integration import probe
from tests.integration.containerd import streams
from tests.integration.image import Image
from tests.integration.product import hook_log
from tests.plugin import scheduler
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE, Ask

REGISTER = "hami.io/node-amd-register"
LOCK = "hami.io/mutex.lock"

SECONDS = 30.0
"""How long anything may take that a pod waits for."""


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    node: Node
    plugin: Plugin
    image: Image
    """What pods are of unless a test says otherwise."""
    static: Image
    """One whose only program is static."""

    # What HAMi's scheduler and its webhook do

    @property
    def registered(self) -> list[Json]:
        """The devices that the node's annotation tells of."""
        return scheduler.registered(self.plane.api)

    def schedule(
        self,
        name: str,
        *asks: Ask,
        devices: Sequence[Sequence[int]],
        lock_text: str | None = None,
        **changes: object,
    ) -> None:
        """Place a pod on the node, with the registered devices of these numbers for each ask.

        ``changes`` are made to the first container.
        """
        api = self.plane.api
        known = self.registered
        chosen = [[known[number] for number in numbers] for numbers in devices]
        document = self.document(name, *asks)
        document["spec"]["schedulerName"] = "hami-scheduler"
        document["spec"]["containers"][0].update(changes)
        annotations = scheduler.placed(scheduler.slots_of(list(asks), chosen, known))
        document["metadata"]["annotations"] = annotations
        api.call("POST", PODS, document)
        self.await_unlocked()
        api.annotate_node(NODE, {LOCK: lock_text or scheduler.locked("default", name)})
        patch = {"metadata": {"annotations": scheduler.allocating()}}
        api.call("PATCH", f"{PODS}/{name}", patch)
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
        api.call("POST", f"{PODS}/{name}/binding", {**binding, "target": target})

    # What its users do

    def create(self, name: str, *asks: Ask) -> None:
        """Create a pod that Kubernetes' own scheduler places, so it asks for GPUs alone."""
        document = self.document(name, *asks)
        for container in document["spec"]["containers"]:
            container.get("resources", {}).get("limits", {}).pop("amd.com/gpucores", None)
        self.plane.api.call("POST", PODS, document)

    def document(self, name: str, *asks: Ask) -> Json:
        """A pod whose init containers look around, and whose other containers wait."""
        document = scheduler.pod(name, list(asks))
        spec = document["spec"]
        for container in [*spec["initContainers"], *spec["containers"]]:
            container |= {"image": self.image.name, "imagePullPolicy": "Never"}
            container["command"] = ["/bin/sleep", "1000000"]
        for container in spec["initContainers"]:
            if "restartPolicy" not in container:
                container["command"] = ["/bin/sh", probe.PATH]
        del spec["nodeName"], document["status"], document["metadata"]["uid"]
        del document["metadata"]["managedFields"]
        spec |= {
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        }
        return document

    def run(self, name: str, *asks: Ask, devices: Sequence[Sequence[int]]) -> None:
        """Schedule a pod by HAMi's scheduler and wait until it runs."""
        self.schedule(name, *asks, devices=devices)
        self.await_running(name)

    def delete(self, *names: str, force: bool = False) -> None:
        """Delete pods; return when nothing of them is left on the node."""
        uids = {self.pod(name)["metadata"]["uid"] for name in names}
        for name in names:
            self.plane.api.delete_pod(name, force=force)
        await_that(lambda: not any(self.plane.api.pod(name) for name in names), SECONDS)
        await_that(lambda: not {name[4:40] for name in self.shares} & uids, SECONDS)

    def clear(self) -> None:
        """Delete all pods, by force."""
        pods = self.plane.api.call("GET", PODS)["items"]
        if pods:
            self.delete(*(pod["metadata"]["name"] for pod in pods), force=True)

    # What is there

    def await_unlocked(self) -> None:
        """Wait until HAMi's lock is off the node."""
        await_that(lambda: LOCK not in self.plane.api.annotations(NODE), SECONDS)

    def pod(self, name: str) -> Json:
        document = self.plane.api.pod(name)
        assert document is not None, f"there is no pod {name}"
        return document

    def annotations(self, name: str) -> dict[str, str]:
        return self.pod(name)["metadata"].get("annotations") or {}

    def await_running(self, name: str) -> None:
        """Wait until all containers of a pod run."""
        await_that(lambda: self._ready(name), SECONDS)

    def await_restarted(self, name: str, ended: tuple[str, int]) -> None:
        """Wait until the main container of a pod runs anew."""
        await_that(lambda: self._id(name, "main") != ended[0], SECONDS)
        self.await_running(name)

    def _ready(self, name: str) -> bool:
        document = self.pod(name)
        status = document["status"]
        assert status["phase"] not in {"Failed", "Succeeded"}, f"{name}: {status.get('message')}"
        conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return conditions.get("Ready") == "True"

    def await_event(self, name: str, reason: str, text: str) -> str:
        """Wait for an event about a pod with this text in it; answer all of its message."""

        def found() -> list[str]:
            events = self.plane.api.events(name)
            messages = [one["message"] for one in events if one["reason"] == reason]
            return [message for message in messages if text in message]

        await_that(lambda: bool(found()), SECONDS)
        return found()[0]

    def await_failed(self, name: str) -> str:
        """Wait until a pod has failed; answer why, as its user reads it."""
        await_that(lambda: self.pod(name)["status"].get("phase") == "Failed", SECONDS)
        return str(self.pod(name)["status"].get("message"))

    def started(self, name: str) -> bool:
        """Whether the main container of a pod has ever run."""
        (status,) = self.pod(name)["status"]["containerStatuses"]
        states = (status["state"], status.get("lastState", {}))
        ended = [state["terminated"]["reason"] for state in states if "terminated" in state]
        return any("running" in state for state in states) or ended not in ([], ["StartError"])

    def device(self, name: str, container: str = "main") -> str:
        """The CDI device of a container that has a share."""
        return f"pod-{self.pod(name)['metadata']['uid']}.{container}"

    def slots(self, name: str) -> list[str]:
        """The GPUs and partitions of which kubelet has given slots to a pod."""
        (status,) = self.pod(name)["status"]["containerStatuses"]
        (resource,) = status["allocatedResourcesStatus"]
        return sorted(one["resourceID"].partition("#")[0] for one in resource["resources"])

    @property
    def devices(self) -> set[str]:
        """The devices in the specs that the runtime reads."""
        return set(specs.devices(self.node.sandbox.path("/etc/cdi")))

    @property
    def shares(self) -> set[str]:
        """Those of them that are shares of pods."""
        return {name for name in self.devices if name.startswith("pod-")}

    def hook_log(self, name: str, container: str = "main") -> list[str]:
        """What the hook logged about the share of a container."""
        device = self.device(name, container)
        return [line for line in hook_log(self.node.sandbox) if device in line]

    # What a container holds

    def look(
        self, name: str, container: str = "main", strangers: Sequence[str] = ()
    ) -> probe.Sight:
        """What a running container sees now.

        `strangers` are the `major:minor` of devices that it tries to open by nodes of its own.
        """
        identity = self._id(name, container)
        ctr = [*self.node.daemon.ctr, "tasks", "exec", f"--exec-id={uuid.uuid4().hex[:8]}"]
        shell = [identity, "/bin/sh", probe.PATH, *strangers]
        return probe.parse(self.node.sandbox.must([*ctr, *shell]))

    def saw(self, name: str, container: str) -> probe.Sight:
        """What an init container saw before it ended."""
        metadata = self.pod(name)["metadata"]
        folder = f"/var/log/pods/default_{name}_{metadata['uid']}/{container}"
        out, _ = streams(self.node.sandbox.path(f"{folder}/0.log"))
        return probe.parse(out)

    def identity(self, name: str, container: str = "main") -> tuple[str, int]:
        """What is another one once a container has been started anew."""
        return self._id(name, container), self.process(name, container)

    def process(self, name: str, container: str = "main") -> int:
        """The number of a container's first process, as the sandbox counts."""
        lines = self.node.sandbox.must([*self.node.daemon.ctr, "tasks", "list"]).splitlines()
        numbers = dict(line.split()[:2] for line in lines)
        return int(numbers[self._id(name, container)])

    def allowed(self, name: str, container: str = "main") -> set[str]:
        """The GPU nodes, by `major:minor`, that the container's cgroup lets it open."""
        sandbox = self.node.sandbox
        number = self.process(name, container)
        lines = sandbox.path(f"/proc/{number}/cgroup").read_text().splitlines()
        paths = dict(line.split(":", 2)[1:] for line in lines)
        assert paths["devices"].startswith(f"/{sandbox.cgroup}/"), paths
        list_ = Path(f"/sys/fs/cgroup/devices{paths['devices']}/devices.list")
        entries = [line.split() for line in list_.read_text().splitlines()]
        # What runc lets every container have: memory, terminals, tun, and making nodes.
        common = {"1", "5", "10", "136", "*"}
        return {number for _, number, _ in entries if number.split(":")[0] not in common}

    def _id(self, name: str, container: str) -> str:
        status = self.pod(name)["status"]
        every = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        identity = next(one["containerID"] for one in every if one["name"] == container)
        return str(identity).removeprefix("containerd://")
