"""What the owner of a pod reads that does not start: what they can change, and no command."""

from tests.cluster.cluster import Cluster
from tests.cluster.contents import MI300X
from tests.plugin.api_server import assert_for_owner
from tests.plugin.scheduler import Ask

QUARTER = Ask(cores=25, memory=16384)


def test_too_many_cus(cluster: Cluster) -> None:
    cluster.run("most", Ask(cores=75, memory=16384), devices=[[MI300X]])
    cluster.schedule("more", Ask(cores=50, memory=16384), devices=[[MI300X]])
    # 75 % of 304 CUs are booked as 29 atoms of 8, so that 9 are left: 23 % are 69 CUs, 24 % 72.
    reason = (
        "GPU 0 (AMD Instinct MI300X): 152 CUs were asked for, and 72 of 304 are free in whole "
        "atoms of 8 (232-303); ask for at most 24 % by amd.com/gpucores, or place the pod on "
        "another node"
    )
    assert reason in cluster.await_failed("more")
    for event in ("UnexpectedAdmissionError", "AMDGPUShareRefused"):
        assert_for_owner(cluster.await_event("more", event, reason))
    cluster.schedule("less", Ask(cores=24, memory=16384), devices=[[MI300X]])
    cluster.await_running("less")


def test_an_image_that_cannot_be_held(cluster: Cluster) -> None:
    cluster.schedule("static", QUARTER, devices=[[MI300X]], image=cluster.static.name)
    message = cluster.await_event("static", "Failed", "refused")
    assert_for_owner(message)
    assert "use an image with dynamic programs on glibc" in message
    assert not cluster.started("static")


def test_a_privileged_container(cluster: Cluster) -> None:
    context = {"privileged": True}
    cluster.schedule("privileged", QUARTER, devices=[[MI300X]], securityContext=context)
    message = cluster.await_event("privileged", "Failed", "refused")
    assert_for_owner(message)
    assert "start it unprivileged, without /dev/dri, and with no GPU but the share" in message
    assert not cluster.started("privileged")
