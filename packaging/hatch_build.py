"""Generates the messages of kubelet's device plugin API before a wheel is built or installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO = "deviceplugin/v1beta1.proto"


class MessagesHook(BuildHookInterface):
    """Runs the protobuf compiler of grpcio-tools, for the code and for its types."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Write ``v1beta1_pb2.py`` and ``v1beta1_pb2.pyi`` beside the proto."""
        from grpc_tools import protoc

        status = protoc.main(
            [
                "protoc",
                f"-I{self.root}",
                f"--python_out={self.root}",
                f"--pyi_out={self.root}",
                str(Path(self.root) / PROTO),
            ]
        )
        if status:
            raise RuntimeError(f"protoc could not compile {PROTO} (status {status})")
        build_data["artifacts"] += ["deviceplugin/*_pb2.py", "deviceplugin/*_pb2.pyi"]
