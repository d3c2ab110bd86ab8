"""The edge to the Kubernetes API, with the real client over real HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client.configuration import Configuration

from cdi.errors import PermanentError
from deviceplugin import cluster
from deviceplugin.cluster import ApiError, Cluster
from deviceplugin.deadline import Deadline
from tests.plugin.api_server import NO_FAULT, ApiServer, Fault
from tests.plugin.scene import client
from tests.plugin.scheduler import NODE, Ask, pod


@pytest.fixture
def server() -> Iterator[ApiServer]:
    started = ApiServer().start()
    started.add_node(NODE)
    yield started
    started.stop()


def test_a_refusal_is_not_tried_again(server: ApiServer) -> None:
    server.fault = lambda request: Fault(status=403)
    with pytest.raises(ApiError, match="cannot GET /api/v1/nodes/gpu-node: 403 a fault") as told:
        client(server).node(NODE, Deadline.after(5))
    assert told.value.status == 403
    assert len(server.requests) == 1


def test_a_server_that_asks_to_wait_too_long_is_not_waited_for(server: ApiServer) -> None:
    server.fault = lambda request: Fault(status=429, retry_after=60)
    began = time.monotonic()
    with pytest.raises(ApiError) as told:
        client(server).node(NODE, Deadline.after(5))
    assert told.value.wait_seconds == 60
    assert time.monotonic() - began < 2


def test_a_server_that_asks_to_wait_is_waited_for(server: ApiServer) -> None:
    began = time.monotonic()
    server.fault = lambda request: (
        Fault(status=429, retry_after=1) if time.monotonic() < began + 0.9 else NO_FAULT
    )
    assert client(server).node(NODE, Deadline.after(10))["metadata"]["name"] == NODE
    assert len(server.requests) == 2


def test_a_slow_server_costs_no_more_than_the_deadline(server: ApiServer) -> None:
    server.fault = lambda request: Fault(delay=5)
    began = time.monotonic()
    with pytest.raises(ApiError, match="cannot GET") as told:
        client(server).node(NODE, Deadline.after(0.5))
    assert told.value.status == 0
    assert time.monotonic() - began < 3


def test_nobody_listens() -> None:
    stopped = ApiServer().start()
    stopped.stop()
    with pytest.raises(ApiError, match="Connection refused"):
        client(stopped).node(NODE, Deadline.after(0.3))


def test_a_later_pod_of_the_name_is_not_patched(server: ApiServer) -> None:
    server.add_pod(pod("set-0", [Ask()], uid="first"))
    edge = client(server)
    edge.patch_pod("default", "set-0", "first", {"a": "1"}, Deadline.after(5))
    server.add_pod(pod("set-0", [Ask()], uid="second"))
    with pytest.raises(ApiError) as told:
        edge.patch_pod("default", "set-0", "first", {"a": "2"}, Deadline.after(5))
    assert told.value.status == 409
    assert edge.pod("default", "none", Deadline.after(5)) is None


def test_null_takes_an_annotation_away(server: ApiServer) -> None:
    edge = client(server)
    edge.patch_node(NODE, {"a": "1", "b": "2"}, Deadline.after(5))
    edge.patch_node(NODE, {"a": None}, Deadline.after(5))
    assert server.annotations(NODE) == {"b": "2"}
    with pytest.raises(ApiError) as told:
        edge.patch_node(NODE, {"b": "3"}, Deadline.after(5), "1")
    assert told.value.status == 409


def test_lists_come_in_pages_of_this_node_only(server: ApiServer) -> None:
    for number in range(300):
        server.add_pod(pod(f"p-{number:03}", [Ask()]))
    other = pod("elsewhere", [Ask()])
    other["spec"]["nodeName"] = "another"
    server.add_pod(other)
    edge = client(server)
    first = edge.list_pods(NODE, "", Deadline.after(5))
    second = edge.list_pods(NODE, first.token, Deadline.after(5))
    assert (len(first.items), len(second.items), second.token) == (250, 50, "")
    assert first.resource_version == second.resource_version
    server.add_pod(pod("later", [Ask()]))
    server.store.compact()
    with pytest.raises(ApiError) as told:
        edge.list_pods(NODE, first.token, Deadline.after(5))
    assert told.value.status == 410


def test_a_watch_tells_of_pods_and_of_versions(server: ApiServer) -> None:
    server.bookmark_seconds = 0.1
    edge = client(server)
    with edge.watch_pods(NODE, str(server.store.version)) as events:
        server.add_pod(pod("one", [Ask()]))
        told = [next(events) for _ in range(4)]
        (added,) = [event for event in told if event["type"] == "ADDED"]
        assert added["object"]["metadata"]["name"] == "one"
        assert told[-1]["type"] == "BOOKMARK"
        versions = [event["object"]["metadata"]["resourceVersion"] for event in told]
        assert versions[-1] == str(server.store.version)
    server.add_pod(pod("two", [Ask()]))
    server.store.compact()
    with edge.watch_pods(NODE, "1") as events:
        told = next(events)
        assert (told["type"], told["object"]["code"]) == ("ERROR", 410)
    server.fault = lambda request: Fault(status=410)
    with pytest.raises(ApiError) as refusal, edge.watch_pods(NODE, "1"):
        pass
    assert refusal.value.status == 410


def test_a_token_is_sent(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.client.api_client import ApiClient

    from tests.plugin import api_server

    seen = []
    serve = api_server._Handler._serve
    monkeypatch.setattr(
        api_server._Handler,
        "_serve",
        lambda self: (seen.append(self.headers.get("Authorization")), serve(self))[1],
    )
    configuration = Configuration(host=server.url, api_key={"authorization": "Bearer abc"})
    configuration.retries = False
    Cluster(ApiClient(configuration)).node(NODE, Deadline.after(5))
    assert seen == ["Bearer abc"]


def test_where_the_cluster_is_found(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(cluster, "SERVICE_ACCOUNT", tmp_path / "none")
    assert cluster.connect() is None
    config = tmp_path / "config"
    config.write_text(server.kubeconfig)
    monkeypatch.setenv("KUBECONFIG", str(config))
    found = cluster.connect()
    assert found is not None
    assert found.node(NODE, Deadline.after(5))["kind"] == "Node"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(PermanentError, match="the configuration of the Kubernetes client"):
        cluster.connect()
