"""A node with the plugin on it, kubelet's side and, where asked for, an API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration

from cdi.node import sample
from cdi.plan.share import Share
from cdi.state import ledger
from deviceplugin import command, options
from deviceplugin.cluster import Cluster
from tests import specs
from tests.plugin.api_server import ApiServer
from tests.plugin.kubelet_side import KubeletSide
from tests.plugin.scheduler import NODE


@dataclass
class Scene:
    root: Path
    kubelet: KubeletSide
    server: ApiServer | None

    @property
    def shares(self) -> dict[str, Share]:
        return {share.name: share for share in ledger.load(self.root / "var/lib/amd-cdi").shares}

    @property
    def devices(self) -> dict[str, Any]:
        """The devices in the specs, as a runtime reads them."""
        return specs.devices(self.root / "etc/cdi")

    def env(self, name: str) -> dict[str, str]:
        entries = self.devices[name.removeprefix("amd.com/gpu=")].get("env", [])
        return dict(entry.split("=", 1) for entry in entries)


def lay(root: Path, name: str) -> Path:
    sample.expand(name, root)
    return root


def client(server: ApiServer) -> Cluster:
    """Return the plugin's edge to the API, with the real Kubernetes client behind it."""
    configuration = Configuration(host=server.url)
    configuration.retries = False
    return Cluster(ApiClient(configuration))


@contextmanager
def plugin(
    root: Path, kubelet: KubeletSide, server: ApiServer | None, *arguments: str
) -> Iterator[None]:
    """Run the plugin in this process, as the command does, until left."""
    given = options.parse(
        [
            f"--sysroot={root}",
            f"--kubelet-dir={kubelet.directory}",
            f"--node-name={NODE}",
            "--pulse=0.2",
            # Not this machine's own.
            f"--runtime-socket={root}/containerd.sock",
            *arguments,
        ],
        {},
    )
    stopping = threading.Event()
    stops: list[Callable[[], None]] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            command.run(given, client(server) if server else None, stopping, stops.append)
        except BaseException as error:  # noqa: BLE001 -- told by the test
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        await_that(lambda: bool(stops) or bool(failures))
        for stop in stops:
            stop()
        if server is not None:
            server.break_watches()
        thread.join(10)
    if failures:
        raise failures[0]


@contextmanager
def scene(
    root: Path,
    name: str,
    *arguments: str,
    cluster: bool = True,
    nodes: Sequence[str] = (NODE,),
    change: Callable[[Path], None] = lambda _: None,
) -> Iterator[Scene]:
    """Lay out a sample node, change it and run everything on it."""
    change(lay(root, name))
    kubelet = KubeletSide(root / "kubelet")
    kubelet.start()
    server = ApiServer().start() if cluster else None
    try:
        if server is not None:
            for node in nodes:
                server.add_node(node)
        with plugin(root, kubelet, server, *arguments):
            kubelet.await_devices()
            if server is not None:
                await_that(lambda: "hami.io/node-amd-register" in server.annotations(NODE))
            yield Scene(root, kubelet, server)
    finally:
        kubelet.stop()
        if server is not None:
            server.stop()


def await_that(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("waited in vain")
        time.sleep(0.01)


def annotation(document: Any, key: str) -> str | None:
    return (document["metadata"].get("annotations") or {}).get(key)


def cus_of(document: Any) -> dict[str, str]:
    return json.loads(annotation(document, "hami.io/amd-cu-allocated") or "{}")
