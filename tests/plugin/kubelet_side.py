"""Kubelet's side of the device plugin API, over real gRPC and real sockets.

It does what kubelet's device manager does: empties its directory when it starts, takes
registrations, follows ListAndWatch, asks for devices and keeps a checkpoint of what it was
answered, so that a container it knows is never asked for again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from deviceplugin import v1beta1_pb2 as api
from tests.plugin.api_server import assert_for_owner

SERVICE = "/v1beta1.DevicePlugin/"


@dataclass
class Plugin:
    """What kubelet knows of a registered resource."""

    resource: str
    endpoint: str
    options: Any
    channel: grpc.Channel
    devices: dict[str, Any] = field(default_factory=dict)
    updates: int = 0
    ended: bool = False


class KubeletSide:
    """One kubelet at a time; ``start`` again is a restart."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugins: dict[str, Plugin] = {}
        self.registrations: list[tuple[float, str]] = []
        self.checkpoint: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
        self.changed = threading.Condition()
        self.server: grpc.Server | None = None

    def start(self) -> None:
        self.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        for entry in self.directory.iterdir():
            entry.unlink()
        register = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, lambda reply: reply.SerializeToString()
        )
        server = grpc.server(
            ThreadPoolExecutor(4),
            handlers=[
                grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})
            ],
        )
        server.add_insecure_port(f"unix:{self.directory / 'kubelet.sock'}")
        server.start()
        self.server = server

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop(None).wait()
            self.server = None
        with self.changed:
            for plugin in self.plugins.values():
                plugin.channel.close()
            self.plugins = {}

    def _register(self, request: Any, context: Any) -> Any:
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "version")
        channel = grpc.insecure_channel(
            f"unix:{self.directory / request.endpoint}",
            options=[("grpc.use_local_subchannel_pool", 1)],
        )
        plugin = Plugin(request.resource_name, request.endpoint, request.options, channel)
        with self.changed:
            old = self.plugins.get(request.resource_name)
            self.plugins[request.resource_name] = plugin
            self.registrations.append((time.monotonic(), request.resource_name))
            self.changed.notify_all()
        if old is not None:
            old.channel.close()
        threading.Thread(target=self._follow, args=(plugin,), daemon=True).start()
        return api.Empty()

    def _follow(self, plugin: Plugin) -> None:
        call = plugin.channel.unary_stream(
            f"{SERVICE}ListAndWatch",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        try:
            for answer in call(api.Empty(), wait_for_ready=True):
                with self.changed:
                    plugin.devices = {device.ID: device for device in answer.devices}
                    plugin.updates += 1
                    self.changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass
        with self.changed:
            plugin.ended = True
            self.changed.notify_all()

    def await_that(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        with self.changed:
            if not self.changed.wait_for(condition, seconds):
                raise AssertionError("kubelet waited in vain")

    def await_devices(self, resource: str = "amd.com/gpu", seconds: float = 10.0) -> Plugin:
        self.await_that(
            lambda: resource in self.plugins and self.plugins[resource].updates > 0, seconds
        )
        return self.plugins[resource]

    def call(
        self, resource: str, method: str, request: Any, reply: Any, seconds: float = 15.0
    ) -> Any:
        call = self.plugins[resource].channel.unary_unary(
            SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        try:
            return call(request, timeout=seconds)
        except grpc.RpcError as refusal:
            # It stands in the pod's status and in its events.
            assert_for_owner(refusal.details())
            raise

    def prefer(
        self,
        available: Sequence[str],
        must: Sequence[str],
        size: int,
        resource: str = "amd.com/gpu",
    ) -> list[str]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must,
                    allocation_size=size,
                )
            ]
        )
        answer = self.call(
            resource, "GetPreferredAllocation", request, api.PreferredAllocationResponse
        )
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str], resource: str = "amd.com/gpu") -> Any:
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        answer = self.call(resource, "Allocate", request, api.AllocateResponse)
        (response,) = answer.container_responses
        return response

    def free(self, resource: str = "amd.com/gpu") -> list[str]:
        taken = {one for ids, _ in self.checkpoint.values() for one in ids}
        return [
            device_id
            for device_id, device in self.plugins[resource].devices.items()
            if device.health == "Healthy" and device_id not in taken
        ]

    def admit(
        self, uid: str, container: str, count: int, resource: str = "amd.com/gpu"
    ) -> list[str]:
        """Return the CDI names of a container, from the checkpoint if it is known.

        What is preferred comes first, and where that is too little any others that are free.
        """
        key = (uid, container, resource)
        if key not in self.checkpoint:
            free = self.free(resource)
            preferred = self.prefer(free, [], count, resource)
            ids = [*preferred, *(one for one in free if one not in preferred)][:count]
            names = [device.name for device in self.allocate(ids, resource).cdi_devices]
            self.checkpoint[key] = (ids, names)
        return self.checkpoint[key][1]

    def forget(self, uid: str) -> None:
        self.checkpoint = {key: value for key, value in self.checkpoint.items() if key[0] != uid}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
