"""The parts of a CDI spec as they stand in its file (CDI specification 1.1.0).

Typed dictionaries, because files are dictionaries: nothing is converted between reading a spec,
checking it, and writing it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict, cast


class DeviceNode(TypedDict, total=False):
    """A device node that is created in the container."""

    path: str
    hostPath: str
    type: str
    major: int
    minor: int
    fileMode: int
    permissions: str
    uid: int
    gid: int


class Mount(TypedDict, total=False):
    """A bind mount."""

    hostPath: str
    containerPath: str
    type: str
    options: list[str]


class Hook(TypedDict, total=False):
    """An OCI hook."""

    hookName: str
    path: str
    args: list[str]
    env: list[str]
    timeout: int


class NetDevice(TypedDict):
    """A network interface that moves into the container."""

    hostInterfaceName: str
    name: str


class ContainerEdits(TypedDict, total=False):
    """What a device, or a whole spec, changes in the configuration of a container."""

    env: list[str]
    deviceNodes: list[DeviceNode]
    netDevices: list[NetDevice]
    mounts: list[Mount]
    hooks: list[Hook]
    intelRdt: dict[str, object]
    additionalGids: list[int]


class Device(TypedDict, total=False):
    """A device that a container can ask for by ``<kind>=<name>``."""

    name: str
    annotations: dict[str, str]
    containerEdits: ContainerEdits


class Spec(TypedDict, total=False):
    """A CDI spec file."""

    cdiVersion: str
    kind: str
    annotations: dict[str, str]
    containerEdits: ContainerEdits
    devices: list[Device]


def merge(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """Return the edits of all parts in order, with what several of them name given once.

    The last value of an environment variable wins, as when a runtime applies the parts in turn.
    """
    env: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key == "env":
                env |= {entry.partition("=")[0]: entry for entry in part["env"]}
            elif isinstance(value, list):
                entries = merged.setdefault(key, [])
                entries += [entry for entry in value if entry not in entries]
            else:
                merged[key] = value
    if env:
        merged = {"env": list(env.values()), **merged}
    return cast("ContainerEdits", merged)
