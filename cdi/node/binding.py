"""Ties the GPU nodes of the KFD topology to the PCI devices and DRM nodes that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdi.node import sysfs, xcp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdi.node.kfd import Agent
    from cdi.node.pci import Device


@dataclass(frozen=True, slots=True)
class Binding:
    """A KFD node with the DRM nodes that belong to it."""

    agent: Agent
    render: int
    card: int | None


def bind(
    devices: Sequence[Device], agents: Sequence[Agent], platform: str, warnings: list[str]
) -> dict[str, list[Binding]]:
    """Return the KFD nodes of each PCI address; ``platform`` is where partitions have theirs."""
    own = {device.render: device for device in devices if device.render is not None}
    xcps: dict[int, int | None] = {}
    if any(agent.render is not None and agent.render not in own for agent in agents):
        xcps = xcp.minors(platform, warnings)
    placed: dict[int, list[tuple[Device, Binding]]] = {}
    for agent in agents:
        try:
            device = _parent(agent, devices)
            binding = _join(agent, device, own, xcps)
        except sysfs.FileError as error:
            warnings.append(f"KFD node {agent.number} is left out: {error}; see {agent.path}")
        else:
            placed.setdefault(binding.render, []).append((device, binding))
    groups: dict[str, list[Binding]] = {}
    for render, claims in placed.items():
        if len(claims) > 1:
            numbers = " and ".join(str(binding.agent.number) for _, binding in claims)
            warnings.append(f"KFD nodes {numbers} are left out: each claims renderD{render}")
            continue
        device, binding = claims[0]
        groups.setdefault(device.pci, []).append(binding)
    return groups


def _join(
    agent: Agent, device: Device, own: dict[int, Device], xcps: dict[int, int | None]
) -> Binding:
    """Return a KFD node with its DRM nodes: the PCI device's own, or those of a partition."""
    owner = device if agent.render is None else own.get(agent.render)
    if owner is device and device.render is not None:
        return Binding(agent, device.render, device.card)
    if owner is None and agent.render in xcps:
        return Binding(agent, agent.render, xcps[agent.render])
    wanted = "a render node" if agent.render is None else f"renderD{agent.render}"
    holder = owner.pci if owner is not None and owner is not device else "no GPU or partition"
    raise sysfs.FileError(f"expected {wanted} with {device.pci}, found it with {holder}")


def _parent(agent: Agent, devices: Sequence[Device]) -> Device:
    """Return the PCI device of a KFD node.

    By bus and device, because the function bits may carry the partition, and by domain where the
    kernel tells it. The unique id decides between several, or where none is there: alone it would
    not do, since some kernels give each partition one of its own.
    """
    slot = (agent.location >> 8 & 0xFF, agent.location >> 3 & 0x1F)
    there = [
        device
        for device in devices
        if device.place[1:3] == slot and agent.domain in {None, device.place[0]}
    ]
    if len(there) == 1:
        return there[0]
    same = [
        device
        for device in there or devices
        if agent.unique_id and device.unique_id == agent.unique_id
    ]
    if len(same) == 1:
        return same[0]
    exact = [device for device in there if device.place[3] == agent.location & 7]
    if len(exact) == 1:
        return exact[0]
    raise sysfs.FileError(
        f"expected one usable GPU of amdgpu at location_id {agent.location:#x}, found {len(there)}"
    )
