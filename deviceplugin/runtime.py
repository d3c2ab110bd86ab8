"""Whether the container runtime gives a container the CDI devices that kubelet names.

containerd with CDI off drops the names and starts the container without its GPU, and says nothing.
So it is asked, through the socket that kubelet uses, each time before kubelet is answered: that
takes a millisecond, and its configuration may have changed. Of other runtimes, and where there is
no socket, nothing is known; CRI-O has no switch for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import grpc

from deviceplugin import cri_pb2 as cri
from deviceplugin.log import log
from deviceplugin.refusal import ELSEWHERE, Refusal

SOCKETS = (
    Path("/run/containerd/containerd.sock"),
    Path("/run/k3s/containerd/containerd.sock"),
)

SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtime of this node."""

    sockets: tuple[Path, ...]
    """The first one that is there is asked."""
    spec_dir: Path

    def require_cdi(self) -> None:
        """Raise Refusal if the runtime is known not to give the devices of this node's specs."""
        fault = self.fault()
        if fault:
            log.error("%s; turn it on with: amd-cdi runtime configure --runtime containerd", fault)
            raise Refusal(
                f"{fault}, so the container would start without its GPU",
                f"{ELSEWHERE}, or have CDI turned on on this one",
            )

    def fault(self) -> str:
        """Return why the runtime would not give the devices; empty if it will, as far as known."""
        configuration = self._configuration()
        if configuration.get("enableCDI") is False:
            return "CDI is off in the node's containerd"
        directories = configuration.get("cdiSpecDirs")
        if isinstance(directories, list) and str(self.spec_dir) not in directories:
            return f"the node's containerd reads no CDI specs in {self.spec_dir}"
        return ""

    def _configuration(self) -> dict[str, object]:
        """Return what the runtime says of its configuration, and nothing if it does not."""
        socket = next((path for path in self.sockets if path.is_socket()), None)
        if socket is None:
            return {}
        try:
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                call = channel.unary_unary(
                    "/runtime.v1.RuntimeService/Status",
                    request_serializer=cri.StatusRequest.SerializeToString,
                    response_deserializer=cri.StatusResponse.FromString,
                )
                answer = call(cri.StatusRequest(verbose=True), timeout=SECONDS)
            found = json.loads(answer.info.get("config") or "{}")
        except (grpc.RpcError, ValueError) as error:
            reason = error.details() if isinstance(error, grpc.RpcError) else error
            log.warning("%s does not tell whether CDI is on: %s", socket, reason)
            return {}
        return found if isinstance(found, dict) else {}
