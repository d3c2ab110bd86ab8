"""What becomes of running pods when something under them is started anew, ends or is away."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.cluster.cluster import SECONDS, Cluster
from tests.cluster.contents import MI300X, assert_held, assert_nodes, gpu_environment
from tests.cluster.node import swap_drm
from tests.plugin.scene import await_that
from tests.plugin.scheduler import Ask

QUARTER = Ask(cores=25, memory=16384)


def mask(cluster: Cluster, name: str) -> str:
    return cluster.look(name).environment["HSA_CU_MASK"]


def registrations(cluster: Cluster) -> int:
    """How often the plugin has registered its devices with kubelet."""
    return cluster.plugin.log().count("registered amd.com/gpu with kubelet")


def await_registration(cluster: Cluster, before: int) -> None:
    await_that(lambda: registrations(cluster) > before, SECONDS)


def restart_kubelet(cluster: Cluster) -> None:
    before = registrations(cluster)
    cluster.node.kubelet.restart()
    await_registration(cluster, before)


def restart_plugin(cluster: Cluster, signal: str) -> None:
    before = registrations(cluster)
    cluster.plugin.stop(signal)
    cluster.plugin.start()
    await_registration(cluster, before)


def restart_containerd(cluster: Cluster) -> None:
    cluster.node.containerd.stop()
    cluster.node.start_containerd()


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param(restart_kubelet, id="kubelet"),
        pytest.param(partial(restart_plugin, signal="TERM"), id="plugin"),
        pytest.param(partial(restart_plugin, signal="KILL"), id="killed plugin"),
        pytest.param(restart_containerd, id="containerd"),
    ],
)
def test_pods_keep_their_shares_beside_new_ones(
    cluster: Cluster, restart: Callable[[Cluster], None]
) -> None:
    for name in ("one", "two"):
        cluster.run(name, QUARTER, devices=[[MI300X]])
    before = {name: (cluster.identity(name), cluster.look(name)) for name in ("one", "two")}
    shares = cluster.shares
    restart(cluster)
    # It is the same process still, with all that it had.
    after = {name: (cluster.identity(name), cluster.look(name)) for name in ("one", "two")}
    assert after == before
    assert cluster.shares == shares
    cluster.run("three", QUARTER, devices=[[MI300X]])
    # 25 % of 304 CUs are booked as 10 atoms of 8.
    masks = [mask(cluster, name) for name in ("one", "two", "three")]
    assert masks == ["0:0-79", "0:80-159", "0:160-239"]
    assert_held(cluster, "three")
    assert len(cluster.shares) == 3


def test_what_ended_while_the_plugin_was_away_is_given_back(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.run(name, QUARTER, devices=[[MI300X]])
    before = registrations(cluster)
    cluster.plugin.stop("KILL")
    cluster.plane.api.delete_pod("one")
    await_that(lambda: cluster.plane.api.pod("one") is None, SECONDS)
    cluster.plugin.start()
    await_registration(cluster, before)
    await_that(lambda: cluster.shares == {cluster.device("two")}, SECONDS)
    cluster.run("three", QUARTER, devices=[[MI300X]])
    assert (mask(cluster, "two"), mask(cluster, "three")) == ("0:80-159", "0:0-79")


def test_a_pod_that_is_deleted_by_force_leaves_its_share_to_the_next(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.run(name, QUARTER, devices=[[MI300X]])
    number = cluster.process("one")
    cluster.delete("one", force=True)
    await_that(lambda: not cluster.node.sandbox.path(f"/proc/{number}").exists(), SECONDS)
    assert cluster.shares == {cluster.device("two")}
    cluster.run("one", QUARTER, devices=[[MI300X]])
    assert (mask(cluster, "one"), mask(cluster, "two")) == ("0:0-79", "0:80-159")


def test_a_pod_fails_when_the_api_server_goes_away_amid_its_allocation(cluster: Cluster) -> None:
    cluster.run("one", QUARTER, devices=[[MI300X]])
    before = cluster.identity("one")
    cluster.plugin.pause()
    cluster.schedule("two", QUARTER, devices=[[MI300X]])
    kubelet = cluster.node.kubelet
    come = re.compile(r'"SyncLoop ADD".*default/two"')
    await_that(lambda: bool(come.search(kubelet.log.read_text())), SECONDS)
    cluster.plane.server.stop("KILL")
    cluster.plugin.resume()
    # Kubelet is refused while nobody can be asked.
    await_that(lambda: "cannot GET /api/v1/nodes" in cluster.plugin.log(), SECONDS)
    cluster.plane.server.start()
    cluster.plane.await_ready()
    assert cluster.await_failed("two").endswith("; create the pod anew, which is unexpected")
    await_that(lambda: cluster.annotations("two")["hami.io/bind-phase"] == "failed", SECONDS)
    cluster.await_unlocked()
    assert cluster.identity("one") == before
    assert cluster.shares == {cluster.device("one")}
    cluster.run("three", QUARTER, devices=[[MI300X]])
    assert (mask(cluster, "one"), mask(cluster, "three")) == ("0:0-79", "0:80-159")


@pytest.fixture
def rebooted(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """Reboots the node into one on which the MI300X and the Radeon have each other's minors.

    Nothing runs on it then.
    """

    def reboot() -> None:
        cluster.plugin.stop("KILL")
        cluster.node.shut_down()
        swap_drm(cluster.node.sysroot)
        cluster.node.boot()

    yield reboot
    cluster.clear()
    cluster.plugin.stop()
    swap_drm(cluster.node.sysroot)
    restart_plugin(cluster, "TERM")


def test_after_a_reboot_with_other_minors_pods_have_their_shares(
    cluster: Cluster, rebooted: Callable[[], None]
) -> None:
    for name in ("one", "two"):
        cluster.run(name, QUARTER, devices=[[MI300X]])
    before = {name: gpu_environment(cluster.look(name)) for name in ("one", "two")}
    ended = {name: cluster.identity(name) for name in ("one", "two")}
    rebooted()
    cluster.plugin.start()
    cluster.node.start()
    for name in ("one", "two"):
        cluster.await_restarted(name, ended[name])
    assert {name: gpu_environment(cluster.look(name)) for name in ("one", "two")} == before
    for name in ("one", "two"):
        assert_nodes(cluster, name, "main", "dri/card20", "dri/renderD150")
    cluster.run("three", QUARTER, devices=[[MI300X]])
    assert mask(cluster, "three") == "0:160-239"
    assert len(cluster.shares) == 3


def test_a_pod_that_kubelet_starts_before_the_plugin_leaves_nothing_behind(
    cluster: Cluster, rebooted: Callable[[], None]
) -> None:
    cluster.run("one", QUARTER, devices=[[MI300X]])
    rebooted()
    # Its share is still in the specs, with the minors that another GPU has now.
    cluster.node.start()
    # Kubelet's own words: it knows of no devices yet, and never asks a second time.
    assert "no healthy devices present" in cluster.await_failed("one")
    before = registrations(cluster)
    cluster.plugin.start()
    await_registration(cluster, before)
    await_that(lambda: not cluster.shares, SECONDS)
    cluster.run("two", QUARTER, devices=[[MI300X]])
    assert mask(cluster, "two") == "0:0-79"
    assert_nodes(cluster, "two", "main", "dri/card20", "dri/renderD150")
