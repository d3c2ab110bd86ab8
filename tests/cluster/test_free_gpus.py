"""Pods that HAMi did not schedule, beside those that it did: they get GPUs that nobody has."""

from tests.cluster.cluster import Cluster
from tests.cluster.contents import FOURTH_PARTITION, MI300X, RADEON, assert_nodes
from tests.plugin.scheduler import Ask

QUARTER = Ask(cores=25, memory=32768)

UNITS = 11
"""An MI300X, eight partitions of another one, a Radeon and an APU."""


def render(cluster: Cluster, name: str) -> str:
    """The one render node of a pod's container."""
    nodes = cluster.look(name).gpu_nodes()
    (found,) = (one for one in nodes if one.startswith("dri/renderD"))
    return found


def test_a_gpu_with_shares_is_left_alone(cluster: Cluster) -> None:
    for name in ("one", "two", "three"):
        cluster.run(name, QUARTER, devices=[[MI300X]])
    cluster.create("plain", Ask())
    cluster.await_running("plain")
    # The first of the partitions, which are the fullest that is free.
    assert_nodes(cluster, "plain", "main", "dri/card9", "dri/renderD137")


def test_slots_that_kubelet_takes_are_those_of_the_gpu_that_hami_booked(cluster: Cluster) -> None:
    cluster.run("radeon", Ask(cores=25, memory=1024), devices=[[RADEON]])
    cluster.run("part", Ask(), devices=[[FOURTH_PARTITION]])
    cluster.run("pair", Ask(gpus=2, cores=25, memory=1024), devices=[[MI300X, RADEON]])
    assert cluster.slots("radeon") == ["0000:83:00.0"]
    assert cluster.slots("part") == ["0000:27:00.0:3:cpx"]
    assert cluster.slots("pair") == ["0000:05:00.0", "0000:83:00.0"]


def test_every_free_gpu_is_given_once_and_then_none(cluster: Cluster) -> None:
    cluster.run("quarter", QUARTER, devices=[[MI300X]])
    cluster.run("half", Ask(cores=50, memory=1024), devices=[[RADEON]])
    names = [f"plain-{number}" for number in range(UNITS - 2)]
    for name in names:
        cluster.create(name, Ask())
        cluster.await_running(name)
    # Eight partitions and the APU.
    given = {render(cluster, name) for name in names}
    assert given == {f"dri/renderD{minor}" for minor in (*range(137, 145), 152)}
    cluster.create("rest", Ask())
    message = cluster.await_failed("rest")
    assert (
        "pod default/rest: 1 whole GPU(s) were asked for, and 0 of 11 are free and healthy; ask "
        "for a part of one by amd.com/gpucores and amd.com/gpumem, or place the pod on another node"
    ) in message


def test_two_gpus_are_never_two_slots_of_one(cluster: Cluster) -> None:
    cluster.run("quarter", QUARTER, devices=[[MI300X]])
    # Kubelet has 9 slots of the MI300X left, 2 of the Radeon, 10 of the APU, 8 of partitions.
    cluster.create("ten", Ask(gpus=10))
    cluster.await_running("ten")
    nodes = cluster.look("ten").gpu_nodes()
    renders = {one for one in nodes if one.startswith("dri/renderD")}
    assert renders == {f"dri/renderD{minor}" for minor in (*range(137, 145), 150, 152)}
    cluster.create("eleven", Ask(gpus=11))
    assert "11 whole GPU(s) were asked for, and 0 of 11 are free" in cluster.await_failed("eleven")
