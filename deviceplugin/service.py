"""The gRPC services of kubelet's device plugin API, without kubelet's directory and its life."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from cdi.errors import AmdCdiError, TemporaryError
from cdi.spec.renderer import KIND
from deviceplugin import v1beta1_pb2 as api
from deviceplugin.log import log
from deviceplugin.refusal import told

M = TypeVar("M", bound=Message)

VERSION = "v1beta1"

OPTIONS = api.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)


class Backend(Protocol):
    """What stands behind the service of one resource."""

    def listed(self) -> tuple[int, Sequence[api.Device]]:
        """Return the devices, and a number that is another one whenever they have changed."""

    def await_change(self, seen: int, cancelled: Callable[[], bool]) -> None:
        """Return when the number is another one, or when woken and cancelled."""

    def wake(self) -> None:
        """Let those that await a change see whether they are cancelled."""

    def prefer(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return the ids to hand out; see ``preferred.choose``."""

    def allocate(self, device_ids: Sequence[str]) -> Sequence[str]:
        """Return the names of the CDI devices for a container; raises AmdCdiError."""


def handler(backend: Backend, ended: Callable[[], bool]) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the DevicePlugin service, whose streams end once ``ended``."""

    def list_and_watch(
        _: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        def cancelled() -> bool:
            return ended() or not context.is_active()

        context.add_callback(backend.wake)
        while not cancelled():
            seen, devices = backend.listed()
            yield api.ListAndWatchResponse(devices=devices)
            backend.await_change(seen, cancelled)

    def prefer(request: api.PreferredAllocationRequest) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse(
            container_responses=[
                api.ContainerPreferredAllocationResponse(
                    deviceIDs=backend.prefer(
                        wanted.available_deviceIDs,
                        wanted.must_include_deviceIDs,
                        wanted.allocation_size,
                    )
                )
                for wanted in request.container_requests
            ]
        )

    def allocate(request: api.AllocateRequest) -> api.AllocateResponse:
        return api.AllocateResponse(
            container_responses=[
                api.ContainerAllocateResponse(
                    cdi_devices=[
                        api.CDIDevice(name=f"{KIND}={name}")
                        for name in backend.allocate(wanted.devices_ids)
                    ]
                )
                for wanted in request.container_requests
            ]
        )

    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin",
        {
            "GetDevicePluginOptions": _unary(lambda _: OPTIONS, api.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                list_and_watch, api.Empty.FromString, _serialise
            ),
            "GetPreferredAllocation": _unary(prefer, api.PreferredAllocationRequest),
            "Allocate": _unary(allocate, api.AllocateRequest),
            "PreStartContainer": _unary(
                lambda _: api.PreStartContainerResponse(), api.PreStartContainerRequest
            ),
        },
    )


def register(kubelet_socket: str, endpoint: str, resource: str, seconds: float) -> None:
    """Register a resource with kubelet; raises grpc.RpcError if it does not answer in time."""
    with grpc.insecure_channel(f"unix:{kubelet_socket}") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=_serialise,
            response_deserializer=api.Empty.FromString,
        )
        call(
            api.RegisterRequest(
                version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS
            ),
            timeout=seconds,
        )


def _unary(method: Callable[[M], Message], request: type[M]) -> grpc.RpcMethodHandler[Any, Any]:
    def guarded(message: M, context: grpc.ServicerContext) -> Message:
        try:
            return method(message)
        except AmdCdiError as error:
            log.error("%s", error)
            temporary = isinstance(error, TemporaryError)
            code = grpc.StatusCode.UNAVAILABLE if temporary else grpc.StatusCode.FAILED_PRECONDITION
            context.abort(code, told(error))
        except Exception as error:  # noqa: BLE001 -- kubelet gets a reason, never a traceback
            log.error("unexpected %s: %s", type(error).__name__, error)
            log.debug("it came from here", exc_info=True)
            context.abort(grpc.StatusCode.INTERNAL, f"unexpected {type(error).__name__}: {error}")

    return grpc.unary_unary_rpc_method_handler(guarded, request.FromString, _serialise)


def _serialise(message: Message) -> bytes:
    return message.SerializeToString()
