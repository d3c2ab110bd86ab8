"""A container runtime whose CDI is off."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.contents import MI300X, gpu_environment, vgpu_mounts
from tests.plugin.scheduler import Ask


@pytest.fixture
def without_cdi(cluster: Cluster) -> Iterator[None]:
    for cdi in (False, True):
        cluster.node.containerd.stop()
        cluster.node.configure(cdi=cdi)
        cluster.node.start_containerd()
        if not cdi:
            yield
            cluster.clear()


def test_a_pod_has_no_gpu_at_all(cluster: Cluster, without_cdi: None) -> None:
    """containerd drops the names of CDI devices and says nothing, and what is left holds no GPU."""
    cluster.run("quarter", Ask(cores=25, memory=8192), devices=[[MI300X]])
    sight = cluster.look("quarter")
    assert sight.gpu_nodes() == {}
    assert gpu_environment(sight) == {}
    assert vgpu_mounts(sight) == {}
    assert cluster.allowed("quarter") == set()
    assert cluster.hook_log("quarter") == []
