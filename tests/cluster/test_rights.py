"""What the plugin asks of the API server, against what it may ask."""

from datetime import UTC, datetime

from tests.cluster.cluster import Cluster
from tests.cluster.contents import MI300X
from tests.cluster.plugin import RIGHTS
from tests.plugin.scheduler import Ask


def test_the_plugin_uses_all_of_its_rights_and_asks_for_no_others(cluster: Cluster) -> None:
    cluster.run("one", Ask(cores=75, memory=8192), devices=[[MI300X]])
    # Under the lock of older schedulers, which names no pod, the pod has to be read.
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.schedule("two", Ask(cores=50, memory=8192), devices=[[MI300X]], lock_text=stamp)
    cluster.await_failed("two")
    # Both kubelet and the plugin write an event about it.
    cluster.await_event("two", "AMDGPUShareRefused", "CUs were asked for")
    audited = cluster.plane.audited()
    assert {one["user"]["username"] for one in audited} == {cluster.plugin.user}
    asked = {(one["verb"], one["objectRef"]["resource"]) for one in audited}
    assert asked == RIGHTS
    assert {one["objectRef"].get("subresource") for one in audited} == {None}
    assert [one for one in audited if one["responseStatus"].get("code") in {401, 403}] == []
