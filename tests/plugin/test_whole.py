"""Pods that HAMi did not schedule get GPUs that nobody has, whatever slots kubelet takes."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from cdi.node import topology
from cdi.plan import planner
from cdi.plan.amount import parse_percent
from cdi.state import store
from cdi.state.paths import Paths
from tests.plugin.scene import Scene, await_that, scene
from tests.plugin.scheduler import Ask, bind, pod, registered

QUARTER = Ask(cores=25, memory=1024)

FIRST, SECOND = "GPU-5f2e90b7c4d1863a", "GPU-b81d64f30ea7952c"
"""The GPUs of the sample rx7900xtx, 0000:03:00.0 and 0000:43:00.0, by their serials."""


def share(it: Scene, name: str, device: int) -> None:
    """Let HAMi place a pod on the registered device of this number, and kubelet admit it."""
    booked = bind(it.server, name, [QUARTER], [[registered(it.server)[device]]])
    it.kubelet.admit(booked["metadata"]["uid"], "main", 1)


def plain(it: Scene, name: str, *asks: Ask) -> str:
    """Create a pod that HAMi does not schedule; answer its uid."""
    document = it.server.add_pod(pod(name, list(asks) or [Ask()]))
    return str(document["metadata"]["uid"])


def gpus(it: Scene, uid: str, container: str = "main") -> list[str]:
    return it.env(f"pod-{uid}.{container}")["ROCR_VISIBLE_DEVICES"].split(",")


def test_kubelet_is_told_of_free_gpus_alone(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        share(it, "one", 0)
        free = it.kubelet.free()
        assert [one[:12] for one in it.kubelet.prefer(free, [], 1)] == ["0000:43:00.0"]
        # No second slot of the same GPU, and none of one with a share.
        assert [one[:12] for one in it.kubelet.prefer(free, [], 2)] == ["0000:43:00.0"]
        share(it, "two", 1)
        assert it.kubelet.prefer(free, [], 1) == []


def test_kubelet_is_told_of_the_gpu_that_hami_booked(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        for name in ("one", "two", "three"):
            share(it, name, 1)
        taken = [one for ids, _ in it.kubelet.checkpoint.values() for one in ids]
        assert taken == ["0000:43:00.0#0", "0000:43:00.0#1", "0000:43:00.0#2"]


@pytest.mark.parametrize("slot", ["0000:03:00.0#0", "0000:43:00.0#9"])
def test_another_gpu_is_given_in_the_place_of_one_with_a_share(tmp_path: Path, slot: str) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        share(it, "one", 0)
        uid = plain(it, "plain")
        it.kubelet.allocate([slot])
        assert gpus(it, uid) == [SECOND]


def test_slots_of_one_gpu_are_two_gpus_all_the_same(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        uid = plain(it, "plain", Ask(gpus=2))
        it.kubelet.allocate(["0000:43:00.0#0", "0000:43:00.0#1"])
        # What kubelet took comes first.
        assert gpus(it, uid) == [SECOND, FIRST]


def test_what_an_init_container_had_is_handed_on(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        share(it, "one", 0)
        uid = plain(it, "plain", Ask("prepare", kind="init"), Ask())
        for _ in range(2):
            it.kubelet.allocate(["0000:43:00.0#1"])
        assert gpus(it, uid, "prepare") == gpus(it, uid) == [SECOND]


def test_a_share_made_by_command_counts(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        node = topology.read_node(tmp_path)
        paths = Paths(
            tmp_path, tmp_path / "etc/cdi", tmp_path / "var/lib/amd-cdi", tmp_path / "run/usage"
        )
        want = planner.Want(*planner.find(node, "0"), cus=parse_percent("25"))
        store.update(
            paths, node, lambda old: old.with_share(planner.plan("share-alice", [want], ()))
        )
        uid = plain(it, "plain")
        it.kubelet.allocate(["0000:03:00.0#0"])
        assert gpus(it, uid) == [SECOND]


def test_a_gpu_that_is_not_healthy_is_not_given(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        (tmp_path / "dev/dri/renderD128").unlink()
        known = it.kubelet.plugins["amd.com/gpu"]
        await_that(lambda: known.devices["0000:03:00.0#0"].health == "Unhealthy")
        uid = plain(it, "plain")
        it.kubelet.allocate(["0000:03:00.0#0"])
        assert gpus(it, uid) == [SECOND]


def test_a_partition_is_not_given_in_the_place_of_a_gpu_of_another_resource(
    tmp_path: Path,
) -> None:
    with scene(tmp_path, "mixed", "--resource-naming-strategy=mixed") as it:
        # Devices 0, 9 and 10 are GPUs, the others partitions.
        for number in (0, 9):
            share(it, f"on-{number}", number)
        apu = bind(it.server, "apu", [Ask(cores=25)], [[registered(it.server)[10]]])
        it.kubelet.admit(apu["metadata"]["uid"], "main", 1)
        plain(it, "plain")
        refusal = r"1 whole GPU\(s\) were asked for, and 0 of 3 are free and healthy"
        with pytest.raises(grpc.RpcError, match=refusal):
            it.kubelet.allocate(["0000:83:00.0#1"])


def test_a_node_without_a_free_gpu_refuses_in_words_for_the_owner_of_the_pod(
    tmp_path: Path,
) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        share(it, "one", 0)
        share(it, "two", 1)
        plain(it, "plain")
        with pytest.raises(grpc.RpcError) as refusal:
            it.kubelet.allocate(["0000:43:00.0#5"])
        assert refusal.value.details() == (
            "pod default/plain: 1 whole GPU(s) were asked for, and 0 of 2 are free and healthy; "
            "ask for a part of one by amd.com/gpucores and amd.com/gpumem, or place the pod on "
            "another node"
        )
