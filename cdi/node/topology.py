"""Reads what a machine has from its sysfs: nothing is executed and nothing else is asked.

Three trees are laid over each other: the PCI devices that amdgpu drives, the GPU nodes of the KFD
topology, and the platform devices that carry the DRM nodes of further partitions. What ties them
is the render minor, checked against the PCI location that KFD tells. A file that cannot be used
costs what it describes, with a warning that names it, and never another GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from cdi.errors import PermanentError, TemporaryError
from cdi.node import kfd, memory, modes, pci, sysfs, unusable
from cdi.node.binding import bind
from cdi.node.gpu import Gpu, Node, Partition
from cdi.node.products import Names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cdi.node.binding import Binding
    from cdi.node.kfd import Agent
    from cdi.node.pci import Device

MAX_REASONS = 3
"""Warnings told where no GPU can be used; the first few say it all."""

ATTEMPTS = 3
"""How often a topology that changes while it is read is read again."""


def read_node(sysroot: Path) -> Node:
    """Return the AMD GPUs that ``<sysroot>/sys`` tells of.

    Raises PermanentError where there is nothing to read or no GPU can be used, and TemporaryError
    where the topology does not stop changing.
    """
    root = os.fspath(sysroot)
    sys = f"{root.rstrip('/')}/sys"
    _require(sysroot, f"expected the root of a system, found no folder {root}")
    _require(sysroot / "sys", f"expected sysfs, found no folder {sys}")
    unusable.require_no_wsl(f"{root.rstrip('/')}/dev")
    nodes = f"{sys}/class/kfd/kfd/topology/nodes"
    generation = f"{sys}/class/kfd/kfd/topology/generation_id"
    for _ in range(ATTEMPTS):
        before = sysfs.read_quietly(generation)
        node = _read_once(sys, nodes, Names(sysroot))
        if sysfs.read_quietly(generation) == before:
            return node
    raise TemporaryError(
        f"expected a topology that rests, found {generation} changing while it was read",
        "wait until GPUs are no longer added, removed or repartitioned, and try again",
    )


def _require(folder: Path, message: str) -> None:
    """Raise PermanentError with the message unless the folder is there."""
    try:
        there = folder.is_dir()
    except OSError as error:
        message = f"{message}: {error.strerror}"
        there = False
    if not there:
        raise PermanentError(
            message, "name the root with --sysroot: / for this machine, with sysfs mounted"
        )


def _read_once(sys: str, nodes: str, names: Names) -> Node:
    warnings: list[str] = []
    devices: list[Device] = []
    try:
        devices += pci.devices(sys, warnings)
        agents = list(kfd.agents(nodes, warnings))
    except PermanentError as error:
        found = map(str, unusable.held_by_others(sys, devices, names))
        raise PermanentError("; ".join([error.message, *found]), error.hint) from error
    others = unusable.held_by_others(sys, devices, names)
    bindings = bind(devices, agents, f"{sys}/devices/platform", warnings)
    gpus = []
    for device in devices:
        own = bindings.get(device.pci, [])
        if device.render is None and not own:
            others.append(unusable.without_render_node(device, names))
            continue
        try:
            gpus.append(_gpu(device, own, names, warnings))
        except sysfs.FileError as error:
            warnings.append(f"GPU {device.pci} is left out: {error}")
    if not gpus:
        told = [*warnings[:MAX_REASONS], "and so on"] if warnings[MAX_REASONS:] else warnings
        raise PermanentError(
            "expected a GPU that can be used, found none: " + "; ".join([*map(str, others), *told]),
            "run as root on the host, and see the kernel's log for amdgpu and kfd",
        )
    nodes_of = {gpu.pci: [one.agent for one in bindings[gpu.pci]] for gpu in gpus}
    owners = {agent.number: gpu for gpu, agents in nodes_of.items() for agent in agents}
    disputed = _disputed(gpus, warnings)
    return Node(
        gpus=tuple(
            replace(
                gpu,
                index=index,
                unique_id=0 if gpu.unique_id in disputed else gpu.unique_id,
                xgmi_peers=_peers(gpu, nodes_of[gpu.pci], owners, warnings),
            )
            for index, gpu in enumerate(gpus)
        ),
        warnings=tuple(warnings),
        unusable=tuple(others),
    )


def _disputed(gpus: Sequence[Gpu], warnings: list[str]) -> set[int]:
    """Return the unique ids that more than one GPU claims."""
    claims: dict[int, list[str]] = {}
    for gpu in gpus:
        if gpu.unique_id:
            claims.setdefault(gpu.unique_id, []).append(gpu.pci)
    disputed = {serial for serial, claimants in claims.items() if len(claimants) > 1}
    warnings.extend(
        f"GPUs {' and '.join(claims[serial])} are addressed by index: expected one GPU with the"
        f" unique id {serial:016x}, found {len(claims[serial])}"
        for serial in sorted(disputed)
    )
    return disputed


def _peers(
    gpu: Gpu, agents: Sequence[Agent], owners: dict[int, str], warnings: list[str]
) -> tuple[str, ...]:
    """Return the addresses of the GPUs that XGMI links reach, from the first partition's links."""
    if not gpu.hive_id:
        return ()
    first = next(agent for agent in agents if agent.number == gpu.partitions[0].kfd_node)
    reached = kfd.xgmi_links(first, warnings)
    return tuple(sorted({owners[number] for number in reached if number in owners} - {gpu.pci}))


# The GPU


def _gpu(device: Device, bindings: Sequence[Binding], names: Names, warnings: list[str]) -> Gpu:
    """Return the GPU of a PCI device, without its place and its peers."""
    if not bindings:
        raise sysfs.FileError(
            "expected a node of it in the KFD topology, found none; it is not fit for compute, or"
            " its node cannot be read"
        )
    where = f"of GPU {device.pci}"
    path = device.path
    mode = modes.current(f"{path}/current_compute_partition", warnings)
    partitions = _partitions(device, bindings, mode, warnings)
    device_id = _number(f"{path}/device", 16, 1 << 16, f"the PCI device id {where}", warnings)
    revision = _number(f"{path}/revision", 16, 1 << 8, f"the revision {where}", warnings)
    try:
        product = sysfs.read(f"{path}/product_name")
    except sysfs.FileError as error:
        warnings.append(f"the product name {where} is taken from a table: {error}")
        product = None
    return Gpu(
        index=0,
        pci=device.pci,
        device_id=device_id or 0,
        revision=revision or 0,
        product=names.market_name(product or "", device_id or 0, revision or 0),
        unique_id=_unique_id(device, bindings, mode, warnings),
        numa_node=_numa(f"{path}/numa_node", warnings),
        hive_id=bindings[0].agent.hive_id,
        xgmi_peers=(),
        compute_mode=mode,
        compute_modes=modes.offered(f"{path}/available_compute_partition", warnings),
        memory_mode=(modes.offered(f"{path}/current_memory_partition", warnings) or ("",))[0],
        memory_modes=modes.offered(f"{path}/available_memory_partition", warnings),
        partitions=partitions,
    )


def _partitions(
    device: Device, bindings: Sequence[Binding], mode: str, warnings: list[str]
) -> tuple[Partition, ...]:
    """Return the partitions of a GPU, ascending by index."""
    placed = _placed(device, bindings, mode, warnings)
    if not placed:
        raise sysfs.FileError("which of its partitions are there is not known")
    kind, sizes = _memory(device, placed, mode, warnings)
    return tuple(
        Partition(
            index=index,
            kfd_node=binding.agent.number,
            render_minor=binding.render,
            card_minor=binding.card,
            gfx_target_version=binding.agent.gfx_target_version,
            cus=binding.agent.cus,
            xccs=binding.agent.xccs,
            queues=binding.agent.queues,
            memory_bytes=size,
            memory_kind=kind,
        )
        for (index, binding), size in zip(sorted(placed.items()), sizes, strict=True)
    )


def _placed(
    device: Device, bindings: Sequence[Binding], mode: str, warnings: list[str]
) -> dict[int, Binding]:
    """Return each KFD node by its place among the partitions of its GPU.

    Where the kernel tells them all the same place, their order counts.
    """
    warnings.extend(
        f"GPU {device.pci}: {loss}" for one in bindings for loss in kfd.losses(one.agent)
    )
    if len(bindings) == 1 and mode in {"", "spx"}:
        return {0: bindings[0]}
    told = {binding.place: binding for binding in bindings if binding.place is not None}
    if len(told) + [binding.place for binding in bindings].count(None) < len(bindings):
        return dict(enumerate(bindings))
    warnings.extend(
        f"a partition of GPU {device.pci} is left out, as which one it is is not known:"
        f" {binding.agent.faults['location_id']}"
        for binding in bindings
        if binding.place is None
    )
    return told


def _memory(
    device: Device, placed: Mapping[int, Binding], mode: str, warnings: list[str]
) -> tuple[memory.Kind, list[int]]:
    """Return the kind of a GPU's memory, and the bytes of each partition, ascending by index."""
    where = f"of GPU {device.pci}"
    vram, gtt = (
        _number(f"{device.path}/mem_info_{name}_total", 10, kfd.MAX_MEMORY, what, warnings)
        for name, what in (("vram", f"the VRAM {where}"), ("gtt", f"the limit of GTT {where}"))
    )
    agents = [binding.agent for _, binding in sorted(placed.items())]
    banks = [_bank(agent, where, warnings) for agent in agents]
    known = memory.Device(agents[0].gfx_target_version, vram, gtt, agents[0].has_cpus)
    kind, sizes = memory.offered(known, banks, modes.parts(mode, max(placed) + 1))
    warnings.extend(
        f"no share {where} can be made, as its memory is not known: expected the size of its"
        f" memory in {agent.path}/mem_banks, found none"
        for agent, size in zip(agents, sizes, strict=True)
        if not size
    )
    return kind, sizes


def _bank(agent: Agent, where: str, warnings: list[str]) -> int | None:
    try:
        return kfd.memory(agent)
    except sysfs.FileError as error:
        warnings.append(f"the memory banks {where} are not known: {error}")
        return None


def _unique_id(device: Device, bindings: Sequence[Binding], mode: str, warnings: list[str]) -> int:
    """Return the serial, from the PCI device or, on kernels without it there, from KFD.

    ROCr knows KFD's number. Where KFD tells another one for a whole GPU, neither is used.
    """
    told = bindings[0].agent.unique_id
    if device.unique_id is None:
        return told if all(binding.agent.unique_id == told for binding in bindings) else 0
    whole = len(bindings) == 1 and mode in {"", "spx"}
    if whole and "unique_id" in bindings[0].agent.faults:
        return 0
    if whole and told and device.unique_id and told != device.unique_id:
        warnings.append(
            f"GPU {device.pci} is addressed by index: its unique id is {device.unique_id:016x} in"
            f" {device.path}/unique_id and {told:016x} in {bindings[0].agent.path}/properties"
        )
        return 0
    return device.unique_id


def _numa(path: str, warnings: list[str]) -> int | None:
    """Return the NUMA node; None where the kernel says -1 or nothing."""
    if (sysfs.read_quietly(path) or "").strip() == "-1":
        return None
    return _number(path, 10, 1 << 16, "the NUMA node", warnings)


def _number(path: str, base: int, limit: int, what: str, warnings: list[str]) -> int | None:
    """Return the number in a file; None if there is none, and with a warning for garbage."""
    try:
        return sysfs.read_number(path, base, limit)
    except sysfs.FileError as error:
        warnings.append(f"{what} is not known: {error}")
        return None
