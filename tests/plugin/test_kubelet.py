"""Kubelet's side over real gRPC and real sockets, without a cluster."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import pytest

from tests.plugin.api_server import ApiServer
from tests.plugin.kubelet_side import KubeletSide, descriptors
from tests.plugin.scene import lay, plugin, scene
from tests.plugin.scheduler import NODE

GPU = "8eff74a1-0000-1000-801b-b56457addd1b"
"""AMD SMI UUID of the sample's first MI300X: serial 8e1bb56457addd1b, PCI device 74a1."""


def test_a_whole_gpu_is_a_cdi_name_and_nothing_else(tmp_path: Path) -> None:
    with scene(tmp_path, "mi300x", cluster=False) as it:
        known = it.kubelet.await_devices()
        assert known.options.get_preferred_allocation_available
        assert not known.options.pre_start_required
        # Nobody shares a GPU where there is no HAMi.
        assert len(known.devices) == 8
        device = known.devices["0000:05:00.0#0"]
        assert device.health == "Healthy"
        assert [node.ID for node in device.topology.nodes] == [0]
        assert [node.ID for node in known.devices["0000:e5:00.0#0"].topology.nodes] == [1]
        answer = it.kubelet.allocate(["0000:05:00.0#0"])
        assert [device.name for device in answer.cdi_devices] == [f"amd.com/gpu={GPU}"]
        assert not answer.envs
        assert not answer.mounts
        assert not answer.devices
        assert not answer.annotations
        assert [node["path"] for node in it.devices[GPU]["deviceNodes"]] == [
            "/dev/dri/card0",
            "/dev/dri/renderD128",
        ]


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        for one in ("0000:99:00.0#0", "0000:03:00.0#1"):
            with pytest.raises(grpc.RpcError, match="this node has none such any more") as refusal:
                it.kubelet.allocate([one])
            assert refusal.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_ids_fit_kubelet_and_are_the_same_in_every_life(tmp_path: Path) -> None:
    lay(tmp_path, "mixed")
    kubelet = KubeletSide(tmp_path / "kubelet")
    kubelet.start()
    server = ApiServer().start()
    server.add_node(NODE)
    seen = []
    for _ in range(2):
        with plugin(tmp_path, kubelet, server):
            kubelet.await_devices()
            seen.append(sorted(kubelet.plugins["amd.com/gpu"].devices))
        kubelet.start()
    kubelet.stop()
    server.stop()
    assert seen[0] == seen[1]
    assert all(len(device_id) <= 63 for device_id in seen[0])
    # By default 10 of an unpartitioned GPU and of the APU, 2 of gfx12, 1 of each of 8 partitions.
    assert len(seen[0]) == 10 + 10 + 2 + 8


def test_partitions_can_be_counted_by_their_modes(tmp_path: Path) -> None:
    with scene(tmp_path, "mixed", "--resource_naming_strategy=mixed", cluster=False) as it:
        it.kubelet.await_devices("amd.com/cpx_nps1")
        assert len(it.kubelet.plugins["amd.com/cpx_nps1"].devices) == 8
        assert len(it.kubelet.plugins["amd.com/gpu"].devices) == 3
        answer = it.kubelet.allocate(["0000:27:00.0:3:cpx#0"], "amd.com/cpx_nps1")
        assert [device.name.rpartition(":")[2] for device in answer.cdi_devices] == ["3"]


def test_a_plugin_that_is_there_before_kubelet_waits_for_it(tmp_path: Path) -> None:
    lay(tmp_path, "rx7900xtx")
    kubelet = KubeletSide(tmp_path / "kubelet")
    with plugin(tmp_path, kubelet, None):
        time.sleep(0.3)
        kubelet.start()
        kubelet.await_devices(seconds=2)
    kubelet.stop()


def test_a_hundred_kubelet_restarts(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        names = it.kubelet.admit("uid", "main", 1)
        for round_ in range(101):
            began = time.monotonic()
            it.kubelet.start()
            it.kubelet.await_devices(seconds=2)
            assert time.monotonic() - began < 2
            if round_ == 0:
                # Pools of threads and of connections have been filled by now.
                before = (descriptors(), threading.active_count())
        # What kubelet has in its checkpoint it does not ask for again, and it still resolves.
        assert it.kubelet.admit("uid", "main", 1) == names
        assert it.devices[names[0].removeprefix("amd.com/gpu=")]
        time.sleep(0.5)
        after = (descriptors(), threading.active_count())
        assert after[0] <= before[0] + 10
        assert after[1] <= before[1] + 10


def test_a_socket_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        count = len(it.kubelet.registrations)
        (it.kubelet.directory / "amd-cdi-gpu.sock").unlink()
        it.kubelet.await_that(lambda: len(it.kubelet.registrations) > count, 2)
        it.kubelet.await_devices()
        assert it.kubelet.allocate(["0000:03:00.0#0"]).cdi_devices


def test_a_directory_that_is_made_anew_is_watched_again(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        it.kubelet.stop()
        for entry in it.kubelet.directory.iterdir():
            entry.unlink()
        it.kubelet.directory.rmdir()
        time.sleep(0.3)
        it.kubelet.start()
        it.kubelet.await_devices(seconds=5)


def test_health_goes_both_ways(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        known = it.kubelet.await_devices()
        node = tmp_path / "dev/dri/renderD128"

        def health() -> set[str]:
            return {
                device.health
                for device_id, device in known.devices.items()
                if device_id.startswith("0000:03:00.0")
            }

        node.rename(tmp_path / "away")
        it.kubelet.await_that(lambda: health() == {"Unhealthy"}, 5)
        assert known.devices["0000:43:00.0#0"].health == "Healthy"
        with pytest.raises(grpc.RpcError, match="is not healthy"):
            it.kubelet.allocate(["0000:03:00.0#0"])
        (tmp_path / "away").rename(node)
        it.kubelet.await_that(lambda: health() == {"Healthy"}, 5)


def test_a_share_made_by_command_keeps_its_gpu_from_being_given_whole(tmp_path: Path) -> None:
    from cdi.node import topology
    from cdi.plan import planner
    from cdi.plan.amount import parse_percent
    from cdi.state import store
    from cdi.state.paths import Paths

    with scene(tmp_path, "rx7900xtx", cluster=False) as it:
        node = topology.read_node(tmp_path)
        paths = Paths(
            tmp_path, tmp_path / "etc/cdi", tmp_path / "var/lib/amd-cdi", tmp_path / "run/usage"
        )
        want = planner.Want(*planner.find(node, "0"), cus=parse_percent("25"))
        store.update(
            paths, node, lambda old: old.with_share(planner.plan("share-alice", [want], ()))
        )
        assert it.kubelet.prefer(it.kubelet.free(), [], 2) == ["0000:43:00.0#0"]
        with pytest.raises(grpc.RpcError, match="GPU 0 was asked for whole, and shares"):
            it.kubelet.allocate(["0000:03:00.0#0"])
        assert it.kubelet.allocate(["0000:43:00.0#0"]).cdi_devices
