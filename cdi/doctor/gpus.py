"""The GPUs, and whether who asks may open their device nodes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor.finding import Finding
from cdi.doctor.user import User, group_name
from cdi.errors import AmdCdiError
from cdi.node import topology
from cdi.node.gpu import Node


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node of a GPU, as it lies on the host."""

    path: str
    mode: int | None
    """None where there is none."""
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class Gpus:
    """What is known of a machine's GPUs."""

    node: Node | None
    nodes: tuple[DeviceNode, ...] = ()
    reason: str = ""
    """Why there are none."""
    hint: str = ""
    """What to do about it."""


def read(root: Path) -> Gpus:
    """Read the GPUs of a machine and their device nodes."""
    try:
        node = topology.read_node(root)
    except AmdCdiError as error:
        return Gpus(None, (), error.message, error.hint)
    paths = ["/dev/kfd"]
    for gpu in node.gpus:
        for partition in gpu.partitions:
            paths.append(f"/dev/dri/renderD{partition.render_minor}")
            if partition.card_minor is not None:
                paths.append(f"/dev/dri/card{partition.card_minor}")
    return Gpus(node, tuple(_device(root, path) for path in dict.fromkeys(paths)))


def findings(gpus: Gpus, user: User) -> Iterator[Finding]:
    """Yield what follows for containers of this user."""
    if gpus.node is None:
        consequence = "no device is offered"
        yield Finding("fails", "there is no GPU to share", gpus.reason, consequence, gpus.hint)
        return
    for warning in gpus.node.warnings:
        yield Finding("less", "a part of the GPUs' description cannot be used", warning)
    missing = [node.path for node in gpus.nodes if node.mode is None]
    if missing:
        yield Finding(
            "fails",
            "device nodes of GPUs are missing",
            f"no {' '.join(missing)}",
            "runtimes refuse to start a container with these devices",
            "let udev make them: udevadm trigger --subsystem-match=drm --subsystem-match=kfd",
        )
    closed = [
        node
        for node in gpus.nodes
        if node.mode is not None and not user.may_open(node.mode, node.uid, node.gid)
    ]
    if closed:
        groups = ",".join(dict.fromkeys(group_name(node.gid) for node in closed))
        yield Finding(
            "fails",
            f"{user.name} may not open the device nodes of GPUs",
            ", ".join(
                f"{node.path} {stat.filemode(node.mode or 0)} group {group_name(node.gid)}"
                for node in closed
            ),
            "ROCm finds no GPU in a container that this user starts without root",
            f"usermod -a -G {groups} {user.name}, log in anew, and start podman's containers with "
            "--group-add keep-groups",
        )
    if not missing and not closed:
        names = ", ".join(f"{gpu.product} {gpu.pci}" for gpu in gpus.node.gpus)
        yield Finding("works", "there are GPUs, and their device nodes", names)


def _device(root: Path, path: str) -> DeviceNode:
    try:
        status = os.stat(root / path.lstrip("/"))  # noqa: PTH116 -- as the kernel says it
    except OSError:
        return DeviceNode(path, None)
    return DeviceNode(path, status.st_mode, status.st_uid, status.st_gid)
