"""A container runtime whose CDI is off: containerd drops the names of CDI devices unsaid."""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.contents import MI300X
from tests.plugin.api_server import assert_for_owner
from tests.plugin.scheduler import Ask

QUARTER = Ask(cores=25, memory=8192)


@pytest.fixture
def without_cdi(cluster: Cluster) -> Iterator[None]:
    for cdi in (False, True):
        cluster.node.containerd.stop()
        cluster.node.configure(cdi=cdi)
        cluster.node.start_containerd()
        if not cdi:
            yield


def test_a_pod_does_not_start_without_its_gpu(cluster: Cluster, without_cdi: None) -> None:
    cluster.schedule("quarter", QUARTER, devices=[[MI300X]])
    cluster.create("plain", Ask())
    reason = (
        "CDI is off in the node's containerd, so the container would start without its GPU; place "
        "the pod on another node, or have CDI turned on on this one"
    )
    for name in ("quarter", "plain"):
        message = cluster.await_failed(name)
        assert reason in message
        assert_for_owner(message)
        cluster.await_event(name, "UnexpectedAdmissionError", reason)
    assert cluster.shares == set()
    assert "turn it on with: amd-cdi runtime configure --runtime containerd" in cluster.plugin.log()
