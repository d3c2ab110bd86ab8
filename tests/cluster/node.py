"""A node of a cluster: the sample node `mixed` with containerd and kubelet on it."""

import json
import os
import re
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
from tests.integration.product import install, mount_usage
from tests.integration.sandbox import Sandbox, remove_cgroup, sandbox
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE

# The processes end first, but for the sandbox's own. Mounts are left behind in these folders.
_SHUT_DOWN = """
kill -9 -1
for folder in /run /var/lib/kubelet; do
    sed -n "s|^[^ ]* \\($folder/[^ ]*\\) .*|\\1|p" /proc/mounts | sort -r | xargs -r umount -l
done
umount -l /run
mount -t tmpfs -o mode=755 run /run
"""

_LOOPBACK = {"cniVersion": "0.4.0", "name": "loopback", "plugins": [{"type": "loopback"}]}


@dataclass
class Node:
    sandbox: Sandbox
    sysroot: Path
    """What /sys and /dev of the machine look like to who looks for GPUs."""
    images: Sequence[Image]
    network: Path
    """Folder of the CNI plugins."""
    daemon: Daemon
    containerd: Service
    kubelet: Service

    def start(self) -> None:
        """Start the daemons, as the machine does at boot."""
        self.start_containerd()
        self.daemon.load(self.sandbox, self.images)
        self.kubelet.start()

    def configure(self, *, cdi: bool) -> None:
        """Write the configuration that containerd reads when it is started next."""
        _containerd(self.sandbox, self.images[0], self.network, cdi=cdi)

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        self.containerd.start()
        with containerd.channel_to(self.sandbox, self.daemon):
            alive(self.containerd)

    def shut_down(self) -> None:
        """End all that runs, without its having a say, and empty what is in memory alone."""
        self.sandbox.must(["sh", "-c", _SHUT_DOWN])
        for service in (self.containerd, self.kubelet):
            service.stop("KILL")
        remove_cgroup(self.sandbox.cgroup)

    def boot(self) -> None:
        """What the machine does before any daemon runs."""
        _make_cgroup(self.sandbox)
        mount_usage(self.sandbox)


def swap_drm(sysroot: Path) -> None:
    """Let the MI300X and the Radeon have each other's DRM nodes, as a boot may bring it about."""
    devices = sysroot / "sys/devices"
    one, other = (next(devices.glob(f"pci*/**/{pci}")) for pci in ("0000:05:00.0", "0000:83:00.0"))
    (one / "drm").rename(sysroot / "drm")
    (other / "drm").rename(one / "drm")
    (sysroot / "drm").rename(other / "drm")
    for device in (one, other):
        for node in (device / "drm").iterdir():
            link = sysroot / "sys/class/drm" / node.name
            link.unlink()
            link.symlink_to(os.path.relpath(node, link.parent))
    minors = {"129": "150", "150": "129"}
    for path in (devices / "virtual/kfd").rglob("properties"):
        text = path.read_text()
        changed = re.sub(r"(?<=drm_render_minor )(129|150)\b", lambda found: minors[found[1]], text)
        if changed != text:
            path.write_text(changed)


@contextmanager
def node(
    folder: Path,
    programs: Programs,
    plane: ControlPlane,
    images: Sequence[Image],
    library: Path | None,
) -> Iterator[Node]:
    """A node that is Ready in the cluster; with the library, that and the hook are installed."""
    folder.mkdir()
    sysroot = folder / "sample"
    sample.expand("mixed", sysroot)
    with sandbox(folder, "host", NODES) as made:
        made.must(["ln", "-s", "null", "/dev/kmsg"])
        _make_cgroup(made)
        if library is not None:
            install(made, library)
        # As systemd leaves it: what a pod mounts there for the node, the node has.
        made.must(["mount", "--make-shared", "/run"])
        daemon = _containerd(made, images[0], programs.network, cdi=True)
        networks = made.path("/etc/cni/net.d")
        networks.mkdir(parents=True, exist_ok=True)
        (networks / "10-loopback.conflist").write_text(json.dumps(_LOOPBACK))
        it = Node(
            made,
            sysroot,
            images,
            programs.network,
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


def _containerd(made: Sandbox, pause: Image, network: Path, *, cdi: bool) -> Daemon:
    runc = need.program("runc")
    return containerd.prepared(made, "forky", runc, pause, cdi=cdi, network=network)


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
