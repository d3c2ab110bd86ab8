"""A node of a cluster: the sample node `mixed` with containerd and kubelet on it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cdi.node import sample
from tests import need
from tests.cluster.control import KUBELET, ControlPlane, alive, free_ports
from tests.cluster.programs import Programs
from tests.cluster.service import Service
from tests.integration import containerd
from tests.integration.conftest import NODES
from tests.integration.containerd import Daemon
from tests.integration.image import Image
from tests.integration.product import install
from tests.integration.sandbox import Sandbox, sandbox
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE

_LOOPBACK = {"cniVersion": "0.4.0", "name": "loopback", "plugins": [{"type": "loopback"}]}


@dataclass
class Node:
    sandbox: Sandbox
    sysroot: Path
    """What /sys and /dev of the machine look like to who looks for GPUs."""
    library: Path
    images: Sequence[Image]
    daemon: Daemon
    containerd: Service
    kubelet: Service

    def start(self) -> None:
        """Start the daemons, as the machine does at boot."""
        self.containerd.start()
        with containerd.channel_to(self.sandbox, self.daemon):
            alive(self.containerd)
        self.daemon.load(self.sandbox, self.images)
        self.kubelet.start()

    @property
    def devices(self) -> Path:
        """Where the host finds the sandbox's /dev."""
        return self.sandbox.path("/dev")


@contextmanager
def node(
    folder: Path, programs: Programs, plane: ControlPlane, images: Sequence[Image], library: Path
) -> Iterator[Node]:
    """A node that is Ready in the cluster, with the hook and the library installed."""
    folder.mkdir()
    sysroot = folder / "sample"
    sample.expand("mixed", sysroot)
    with sandbox(folder, "host", NODES) as made:
        made.must(["ln", "-s", "null", "/dev/kmsg"])
        _make_cgroup(made)
        install(made, library)
        runc, network = need.program("runc"), programs.network
        daemon = containerd.prepared(made, "forky", runc, images[0], network=network)
        networks = made.path("/etc/cni/net.d")
        networks.mkdir(parents=True, exist_ok=True)
        (networks / "10-loopback.conflist").write_text(json.dumps(_LOOPBACK))
        it = Node(
            made,
            sysroot,
            library,
            images,
            daemon,
            Service(made, "containerd", daemon.command),
            _kubelet(made, programs, plane, daemon),
        )
        it.start()
        await_that(lambda: alive(it.kubelet) and is_ready(plane), 60)
        yield it


def is_ready(plane: ControlPlane) -> bool:
    path = f"/api/v1/nodes/{NODE}"
    if not plane.api.has(path):
        return False
    document = plane.api.call("GET", path)
    conditions = {one["type"]: one["status"] for one in document["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not document["spec"].get("taints")


def _make_cgroup(made: Sandbox) -> None:
    """Make the cgroup below which kubelet makes those of pods."""
    made.must(["sh", "-c", f'for one in /sys/fs/cgroup/*; do mkdir "$one/{made.cgroup}"; done'])


def _kubelet(made: Sandbox, programs: Programs, plane: ControlPlane, daemon: Daemon) -> Service:
    (port,) = free_ports(1)
    configuration = made.folder / "kubelet.json"
    configuration.write_text(
        json.dumps(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": "127.0.0.1",
                "port": port,
                "healthzPort": 0,
                "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
                "authorization": {"mode": "Webhook"},
                "containerRuntimeEndpoint": f"unix://{daemon.socket}",
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{made.cgroup}",
                "enforceNodeAllocatable": [],
                "failCgroupV1": False,
                "failSwapOn": False,
                "oomScoreAdj": 0,
                "localStorageCapacityIsolation": False,
                "makeIPTablesUtilChains": False,
                "evictionHard": {"memory.available": "1Mi"},
                # So that capacity is soon what the plugin says.
                "nodeStatusUpdateFrequency": "1s",
            }
        )
    )
    command = [
        programs.kubernetes["kubelet"],
        f"--config={configuration}",
        f"--kubeconfig={plane.kubeconfig(KUBELET)}",
        f"--hostname-override={NODE}",
        "--root-dir=/var/lib/kubelet",
        # Tells when a pod has come to it.
        "--v=2",
        f"--cert-dir={made.folder}/kubelet-certificates",
    ]
    return Service(made, "kubelet", command)
