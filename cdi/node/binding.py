"""Ties the GPU nodes of the KFD topology to the PCI devices and DRM nodes that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdi.node import sysfs, xcp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdi.node.kfd import Agent
    from cdi.node.pci import Device


@dataclass(frozen=True, slots=True)
class Binding:
    """A KFD node with the DRM nodes that belong to it."""

    agent: Agent
    render: int
    card: int | None
    place: int | None
    """Which partition of its GPU it is, as its location tells; None if that is not known."""


def bind(
    devices: Sequence[Device], agents: Sequence[Agent], platform: str, warnings: list[str]
) -> dict[str, list[Binding]]:
    """Return the KFD nodes of each PCI address; ``platform`` is where partitions have theirs."""
    own = {device.render: device for device in devices if device.render is not None}
    xcps: dict[int, int | None] = {}
    if any(agent.render is not None and agent.render not in own for agent in agents):
        xcps = xcp.minors(platform, warnings)
    bound: list[tuple[Device, Binding]] = []
    for agent in agents:
        try:
            device = _parent(agent, devices, own)
            if device.render is None and agent.render not in xcps:
                continue  # The GPU has no render node, which is told of it and not of its nodes.
            bound.append((device, _join(agent, device, own, xcps)))
        except sysfs.FileError as error:
            warnings.append(f"KFD node {agent.number} is left out: {error}; see {agent.path}")
    claims: dict[int, list[tuple[Device, Binding]]] = {}
    for device, binding in bound:
        claims.setdefault(binding.render, []).append((device, binding))
    groups: dict[str, list[Binding]] = {}
    for render, claimants in claims.items():
        if len(claimants) > 1:
            numbers = " and ".join(str(binding.agent.number) for _, binding in claimants)
            warnings.append(f"KFD nodes {numbers} are left out: each claims renderD{render}")
            continue
        device, binding = claimants[0]
        groups.setdefault(device.pci, []).append(binding)
    return groups


def _join(
    agent: Agent, device: Device, own: Mapping[int, Device], xcps: Mapping[int, int | None]
) -> Binding:
    """Return a KFD node with its DRM nodes: the PCI device's own, or those of a partition."""
    place = _place(agent, device)
    if agent.render is None:
        if place == 0 and device.render is not None:
            return Binding(agent, device.render, device.card, place)
        missing = f"expected drm_render_minor in {agent.path}/properties, found none"
        raise sysfs.FileError(agent.faults.get("drm_render_minor", missing))
    owner = own.get(agent.render)
    if owner is device:
        return Binding(agent, agent.render, device.card, place)
    if owner is None and agent.render in xcps:
        return Binding(agent, agent.render, xcps[agent.render], place)
    holder = owner.pci if owner is not None else "no GPU or partition"
    raise sysfs.FileError(
        f"expected renderD{agent.render} with {device.pci}, found it with {holder}"
    )


def _place(agent: Agent, device: Device) -> int | None:
    """Return which partition a KFD node is.

    The kernel tells it in the function bits of the location (some kernels: in its top four bits),
    so that a missing partition does not shift the others.
    """
    if agent.location is None:
        return None
    return (agent.location & 7 ^ device.place[3]) | agent.location >> 28


def _parent(agent: Agent, devices: Sequence[Device], own: Mapping[int, Device]) -> Device:
    """Return the PCI device of a KFD node.

    By bus and device, because the function bits may carry the partition, and by domain where the
    kernel tells it. The unique id decides between several, or where none is there: alone it would
    not do, since some kernels give each partition one of its own.
    """
    there: list[Device] = []
    if agent.location is not None:
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
    if agent.location is None:
        if agent.render is not None and agent.render in own:
            return own[agent.render]
        raise sysfs.FileError(agent.faults["location_id"])
    exact = [device for device in there if device.place[3] == agent.location & 7]
    if len(exact) == 1:
        return exact[0]
    raise sysfs.FileError(
        f"expected one usable GPU of amdgpu at location_id {agent.location:#x}, found {len(there)}"
    )
