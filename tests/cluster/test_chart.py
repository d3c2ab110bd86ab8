"""The chart on a node that has nothing of amd-cdi: installed, upgraded, rolled back, taken away.

The tests are the life of one release, in their order.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdi.version import __version__
from tests import container_image
from tests.cluster.cluster import REGISTER, SECONDS, Cluster
from tests.cluster.contents import MI300X, assert_held, assert_nodes, gpu_environment
from tests.cluster.control import control_plane
from tests.cluster.node import node
from tests.cluster.plugin import RIGHTS
from tests.cluster.programs import Programs
from tests.cluster.release import Release
from tests.helm import MANIFESTS
from tests.integration.conftest import scratch  # noqa: F401
from tests.integration.image import Image
from tests.integration.product import USAGE
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE, Ask

QUARTER = Ask(cores=25, memory=49152)
FOLDERS = ("/etc/cdi", "/opt/amd-cdi", "/var/lib/amd-cdi", "/run/amd-cdi", "/var/log/amd-cdi")


@pytest.fixture(scope="module")
def release(
    kubernetes: Programs,
    scratch: Path,  # noqa: F811
    dynamic: Image,
    static: Image,
) -> Iterator[Release]:
    """A release that is not installed yet; the node has its image, and NFD's label."""
    built = container_image.built()
    with (
        control_plane(scratch / "chart-control", kubernetes) as plane,
        node(scratch / "chart-node", kubernetes, plane, [dynamic, static], None) as machine,
    ):
        machine.sandbox.must([*machine.daemon.ctr, "images", "import", built.archive])
        label = {"feature.node.kubernetes.io/amd-gpu": "true"}
        plane.api.call("PATCH", f"/api/v1/nodes/{NODE}", {"metadata": {"labels": label}})
        yield Release(plane, machine)


@pytest.fixture(scope="module")
def cluster(release: Release, dynamic: Image, static: Image) -> Cluster:
    release.install()
    it = Cluster(release.plane, release.node, release, dynamic, static)
    await_registered(it)
    return it


@pytest.fixture(autouse=True)
def cleared() -> None:
    """Pods are left to the tests that follow."""


def await_registered(cluster: Cluster) -> None:
    """Wait until both HAMi's scheduler and kubelet know of the GPUs."""
    await_that(lambda: REGISTER in cluster.plane.api.annotations(NODE), SECONDS)
    await_that(lambda: allocatable(cluster) != "0", SECONDS)


def allocatable(cluster: Cluster) -> str:
    document = cluster.plane.api.call("GET", f"/api/v1/nodes/{NODE}")
    return str(document["status"]["allocatable"].get("amd.com/gpu", "0"))


def files(cluster: Cluster) -> set[str]:
    """All that lies in the folders which are the product's, or where it keeps something."""
    found = cluster.node.sandbox.must(["find", *FOLDERS, "-mindepth", "1", "-not", "-type", "d"])
    return set(found.split())


def mounts(cluster: Cluster) -> list[list[str]]:
    """What is mounted on the node, as fstab(5) has it."""
    lines = cluster.node.sandbox.must(["cat", "/proc/self/mounts"]).splitlines()
    return [line.split() for line in lines]


def mask(cluster: Cluster, name: str) -> str:
    return gpu_environment(cluster.look(name))["HSA_CU_MASK"]


def test_a_quarter_of_a_gpu(cluster: Cluster) -> None:
    cluster.run("quarter", QUARTER, devices=[[MI300X]])
    assert mask(cluster, "quarter") == "0:0-79"
    assert_nodes(cluster, "quarter", "main", "dri/card1", "dri/renderD129")
    assert_held(cluster, "quarter")


def test_the_plugin_asks_for_nothing_that_it_may_not(cluster: Cluster, release: Release) -> None:
    audited = [one for one in release.plane.audited() if one["user"]["username"] == release.user]
    assert {(one["verb"], one["objectRef"]["resource"]) for one in audited} <= RIGHTS
    assert [one for one in audited if one["responseStatus"].get("code") in {401, 403}] == []


def test_usage_regions_are_on_a_filesystem_of_the_node(cluster: Cluster) -> None:
    (mount,) = [mount for mount in mounts(cluster) if mount[1] == USAGE]
    assert mount[2] == "tmpfs"
    assert "size=65536k" in mount[3].split(",")
    assert f"{USAGE}/{cluster.device('quarter')}" in files(cluster)


def test_helm_test_gets_a_gpu(cluster: Cluster, release: Release) -> None:
    assert "Phase:          Succeeded" in release.helm("test", "amd-cdi")


@pytest.mark.parametrize("change", ["upgrade", "rollback"])
def test_pods_keep_their_shares_beside_new_ones(
    cluster: Cluster, release: Release, change: str
) -> None:
    before, plugin = cluster.identity("quarter"), release.process
    if change == "upgrade":
        release.upgrade(allocatorPolicy="spread")
    else:
        release.rollback()
    assert release.process != plugin
    (container,) = release.pod["spec"]["containers"]
    policy = "spread" if change == "upgrade" else "besteffort"
    assert f"--allocator-policy={policy}" in container["args"]
    await_registered(cluster)
    assert cluster.identity("quarter") == before
    assert mask(cluster, "quarter") == "0:0-79"
    cluster.run("another", QUARTER, devices=[[MI300X]])
    assert mask(cluster, "another") == "0:80-159"
    cluster.delete("another")


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_api_server_takes_the_manifests(release: Release, path: Path) -> None:
    release.kubectl("apply", "--dry-run=server", "--validate=strict", f"--filename={path}")


def test_uninstalling_leaves_what_a_share_needs(cluster: Cluster, release: Release) -> None:
    before = cluster.identity("quarter")
    release.uninstall()
    assert REGISTER not in cluster.plane.api.annotations(NODE)
    await_that(lambda: allocatable(cluster) == "0", SECONDS)
    assert cluster.identity("quarter") == before
    assert_held(cluster, "quarter")
    assert f"/opt/amd-cdi/{__version__}/amd-oci-hook" in files(cluster)
    # It is found again by the next one.
    release.install()
    await_registered(cluster)
    cluster.run("another", QUARTER, devices=[[MI300X]])
    assert mask(cluster, "another") == "0:80-159"


def test_uninstalling_leaves_a_node_without_shares_clean(
    cluster: Cluster, release: Release
) -> None:
    cluster.clear()
    release.uninstall()
    assert REGISTER not in cluster.plane.api.annotations(NODE)
    await_that(lambda: allocatable(cluster) == "0", SECONDS)
    assert files(cluster) == set()
    assert USAGE not in [mount[1] for mount in mounts(cluster)]
    # Pods go after the DaemonSet that they are of.
    kinds = "pods,daemonsets,jobs,roles,rolebindings,serviceaccounts"
    await_that(
        lambda: release.kubectl("get", kinds, "--output=name") == "serviceaccount/default\n",
        SECONDS,
    )
    every = release.kubectl("get", "clusterroles,clusterrolebindings", "--output=name")
    assert "amd-cdi" not in every
