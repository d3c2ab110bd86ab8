"""What the plugin makes of what containerd says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from deviceplugin import cri_pb2 as cri
from deviceplugin.runtime import Runtime
from tests.plugin.scene import annotation, await_that, scene
from tests.plugin.scheduler import NODE, Ask, bind, pod

# As containerd 1.7.24 and 2.1.9 say it, with CDI on.
ON = {"enableCDI": True, "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"], "rootDir": "/var/lib"}
OFF = {**ON, "enableCDI": False}


@contextmanager
def containerd(socket: Path, said: dict[str, str]) -> Iterator[None]:
    """A runtime's side on this socket, which says this of itself when asked for all."""

    def status(request: Any, context: grpc.ServicerContext) -> cri.StatusResponse:
        return cri.StatusResponse(info=said if request.verbose else {})

    server = grpc.server(ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(
        status, cri.StatusRequest.FromString, cri.StatusResponse.SerializeToString
    )
    service = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Status": handler})
    server.add_generic_rpc_handlers([service])
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("configuration", "fault"),
    [
        (json.dumps(ON), ""),
        (json.dumps(OFF), "CDI is off in the node's containerd"),
        (
            json.dumps({**ON, "cdiSpecDirs": ["/var/run/cdi"]}),
            "the node's containerd reads no CDI specs in /etc/cdi",
        ),
        # Another runtime says other things, or nothing that can be read.
        (json.dumps({"runtime": "crun"}), ""),
        (json.dumps(["enableCDI"]), ""),
        ("{", ""),
    ],
)
def test_what_the_runtime_says(tmp_path: Path, configuration: str, fault: str) -> None:
    socket = tmp_path / "containerd.sock"
    with containerd(socket, {"config": configuration}):
        assert Runtime((tmp_path / "none", socket), Path("/etc/cdi")).fault() == fault


def test_where_nobody_can_be_asked_nothing_is_known(tmp_path: Path) -> None:
    assert Runtime((tmp_path / "none",), Path("/etc/cdi")).fault() == ""
    silent = tmp_path / "silent.sock"
    import socket

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(silent))
        listening.listen()
        assert Runtime((silent,), Path("/etc/cdi")).fault() == ""
    assert Runtime((silent,), Path("/etc/cdi")).fault() == ""


def test_no_pod_is_given_a_name_that_the_runtime_drops(tmp_path: Path) -> None:
    with scene(tmp_path, "rx7900xtx") as it:
        socket = tmp_path / "containerd.sock"
        off = {"config": json.dumps({**OFF, "cdiSpecDirs": [f"{tmp_path}/etc/cdi"]})}
        refusal = (
            "CDI is off in the node's containerd, so the container would start without its GPU; "
            "place the pod on another node, or have CDI turned on on this one"
        )
        with containerd(socket, off):
            booked = bind(it.server, "booked", [Ask(cores=25, memory=1024)])
            with pytest.raises(grpc.RpcError) as error:
                it.kubelet.admit(booked["metadata"]["uid"], "main", 1)
            assert error.value.details() == f"pod default/booked: {refusal}"
            after = it.server.pod("default", "booked")
            assert annotation(after, "hami.io/bind-phase") == "failed"
            await_that(lambda: "hami.io/mutex.lock" not in it.server.annotations(NODE))
            it.server.delete_pod("default", "booked")
            plain = it.server.add_pod(pod("plain", [Ask()]))
            with pytest.raises(grpc.RpcError) as error:
                it.kubelet.admit(plain["metadata"]["uid"], "main", 1)
            assert error.value.details() == f"pod default/plain: {refusal}"
        assert it.shares == {}
        on = {"config": json.dumps({**ON, "cdiSpecDirs": [f"{tmp_path}/etc/cdi"]})}
        with containerd(socket, on):
            assert it.kubelet.admit(plain["metadata"]["uid"], "main", 1)
