"""The device plugin's answer, given to a real containerd as kubelet gives it: through CRI.

The plugin runs on the machine of the sandbox, as it is installed. Kubelet's side and the API
server are the test's, HAMi's scheduler is its arithmetic.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from cdi.node import sample
from tests import need, specs
from tests.integration.conftest import NODES
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.product import REPOSITORY, USAGE, hook_log, install
from tests.integration.runtimes import ENGINES
from tests.integration.sandbox import sandbox
from tests.plugin.api_server import ApiServer
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE, Ask, bind, registered

MI300X = 0
"""Place of the unpartitioned MI300X (card1, renderD129) in the node's annotation."""


@dataclass(frozen=True)
class Cluster:
    machine: Machine
    kubelet: KubeletSide
    server: ApiServer

    def devices(self) -> set[str]:
        """The devices in the specs that the runtime reads."""
        return set(specs.devices(self.machine.sandbox.path("/etc/cdi")))

    def admit(self, name: str, ask: Ask) -> str:
        """Schedule a pod with one container; answer the CDI device that kubelet got for it."""
        document = bind(self.server, name, [ask], [[registered(self.server)[MI300X]]])
        (answer,) = self.kubelet.admit(document["metadata"]["uid"], ask.name, ask.gpus)
        return answer.removeprefix("amd.com/gpu=")


@pytest.fixture(scope="module")
def cluster(scratch: Path, dynamic: Image, static: Image, library: Path) -> Iterator[Cluster]:
    need.namespaces()
    runtime = next(one for one in ENGINES if one.name == "containerd-2")
    folder = scratch / "plugin"
    folder.mkdir()
    sample.expand("mixed", folder / "node")
    server = ApiServer().start()
    server.add_node(NODE)
    kubelet = KubeletSide(folder / "kubelet")
    kubelet.start()
    config = folder / "kubeconfig"
    config.write_text(server.kubeconfig)
    with (
        sandbox(folder, runtime.cgroups, NODES) as made,
        runtime.opened(made, [dynamic, static]) as start,
    ):
        install(made, library)
        plugin = subprocess.Popen(
            made.enter(
                [
                    *(sys.executable, "-c", "from deviceplugin.command import main; main()"),
                    f"--sysroot={folder / 'node'}",
                    f"--kubelet-dir={kubelet.directory}",
                    f"--node-name={NODE}",
                    *("--spec-dir=/etc/cdi", "--state-dir=/var/lib/amd-cdi"),
                    f"--usage-dir={USAGE}",
                ]
            ),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(config)},
        )
        try:
            kubelet.await_devices(seconds=60)
            await_that(lambda: "hami.io/node-amd-register" in server.annotations(NODE), 30)
            yield Cluster(Machine(made, runtime, dynamic, static, start), kubelet, server)
        finally:
            plugin.terminate()
            plugin.wait(30)
            kubelet.stop()
            server.stop()


def test_a_pod_runs_with_its_share_and_the_share_goes_with_it(cluster: Cluster) -> None:
    # 25 % of 304 CUs, in whole atoms of 8, are 80.
    device = cluster.admit("train", Ask(cores=25, memory=49152))
    sight = cluster.machine.look(device)
    assert set(sight.gpu_nodes()) == {"kfd", "dri/card1", "dri/renderD129"}
    assert sight.environment["HSA_CU_MASK"] == "0:0-79"
    assert sight.environment["HIP_DEVICE_MEMORY_LIMIT_0"] == "51539607552"
    assert f"share {device}: memory held by the library" in hook_log(cluster.machine.sandbox)[-1]
    cluster.server.delete_pod("default", "train")
    await_that(lambda: device not in cluster.devices(), 30)
    refused = cluster.machine.run(device)
    assert refused.status != 0
    assert "unresolvable CDI devices" in refused.stderr


def test_two_pods_side_by_side_have_nothing_in_common(cluster: Cluster) -> None:
    masks = []
    for name in ("one", "two"):
        device = cluster.admit(name, Ask(cores=40, memory=8192))
        masks.append(cluster.machine.look(device).environment["HSA_CU_MASK"])
    # 40 % are 121 CUs, 128 in whole atoms.
    assert masks == ["0:0-127", "0:128-255"]
    for name in ("one", "two"):
        cluster.server.change_pod("default", name, {"status": {"phase": "Succeeded"}})
    await_that(lambda: not any(name.startswith("pod-") for name in cluster.devices()), 30)


def test_a_pod_with_a_whole_gpu_runs_any_image_and_no_hook(cluster: Cluster) -> None:
    device = cluster.admit("whole", Ask())
    before = len(hook_log(cluster.machine.sandbox))
    outcome = cluster.machine.run(device, image=cluster.machine.static)
    assert outcome.status == 0
    assert "ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b" in outcome.stdout
    assert "HSA_CU_MASK" not in outcome.stdout
    assert len(hook_log(cluster.machine.sandbox)) == before
    cluster.server.delete_pod("default", "whole")
    await_that(lambda: device not in cluster.devices(), 30)


def test_a_pod_whose_library_is_not_loaded_is_refused(cluster: Cluster) -> None:
    device = cluster.admit("static", Ask(cores=25, memory=8192))
    outcome = cluster.machine.run(device, image=cluster.machine.static, command=("/bin/true",))
    assert outcome.status == cluster.machine.runtime.refusal
    assert f"share {device}: refused" in outcome.stderr
    cluster.server.delete_pod("default", "static")
    await_that(lambda: device not in cluster.devices(), 30)


def test_what_does_not_fit_fails_in_kubelet_with_the_reason(cluster: Cluster) -> None:
    device = cluster.admit("most", Ask(cores=90, memory=8192))
    with pytest.raises(grpc.RpcError) as refusal:
        cluster.admit("rest", Ask(cores=20, memory=8192))
    assert "64 CUs were asked for, and 24 of 304 are free" in refusal.value.details()
    cluster.server.delete_pod("default", "most")
    began = time.monotonic()
    await_that(lambda: device not in cluster.devices(), 30)
    assert time.monotonic() - began < 30
