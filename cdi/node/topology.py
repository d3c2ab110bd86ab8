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
from cdi.node import kfd, modes, pci, sysfs
from cdi.node.binding import bind
from cdi.node.gpu import Gpu, Node, Partition
from cdi.node.products import Names

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    devices = list(pci.devices(sys, warnings))
    agents = list(kfd.agents(nodes, warnings))
    bindings = bind(devices, agents, f"{sys}/devices/platform", warnings)
    gpus = []
    for device in devices:
        try:
            gpus.append(_gpu(device, bindings.get(device.pci, []), names, warnings))
        except sysfs.FileError as error:
            warnings.append(f"GPU {device.pci} is left out: {error}")
    if not gpus:
        found = [*warnings[:MAX_REASONS], "and so on"] if warnings[MAX_REASONS:] else warnings
        raise PermanentError(
            f"expected a GPU that can be used, found none: {'; '.join(found)}",
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
    try:
        first = next(agent for agent in agents if agent.number == gpu.partitions[0].kfd_node)
        reached = kfd.xgmi_links(first)
    except sysfs.FileError as error:
        warnings.append(f"the XGMI links of GPU {gpu.pci} are not known: {error}")
        return ()
    return tuple(sorted({owners[number] for number in reached if number in owners} - {gpu.pci}))


# The GPU


def _gpu(device: Device, bindings: Sequence[Binding], names: Names, warnings: list[str]) -> Gpu:
    """Return the GPU of a PCI device, without its place and its peers."""
    if not bindings:
        raise sysfs.FileError(
            "expected a node of it in the KFD topology, found none; it is not fit for compute, or"
            " its node cannot be read"
        )
    device_id = sysfs.read_number(f"{device.path}/device", 16, 1 << 16)
    if device_id is None:
        raise sysfs.FileError(f"expected a PCI device id, found no file {device.path}/device")
    revision = _optional_number(f"{device.path}/revision", 16, 1 << 8, warnings) or 0
    mode = modes.current(f"{device.path}/current_compute_partition")
    total = sysfs.read_number(f"{device.path}/mem_info_vram_total", 10, kfd.MAX_VRAM)
    partitions = _partitions(device, bindings, mode, total, warnings)
    first = bindings[0].agent
    try:
        product = sysfs.read(f"{device.path}/product_name")
    except sysfs.FileError as error:
        warnings.append(f"the product name of GPU {device.pci} is taken from a table: {error}")
        product = None
    return Gpu(
        index=0,
        pci=device.pci,
        device_id=device_id,
        revision=revision,
        product=names.market_name(product or "", device_id, revision),
        unique_id=_unique_id(device, bindings, mode, warnings),
        numa_node=_numa(f"{device.path}/numa_node", warnings),
        hive_id=first.hive_id,
        xgmi_peers=(),
        compute_mode=mode,
        compute_modes=modes.offered(f"{device.path}/available_compute_partition", warnings),
        memory_mode=(modes.offered(f"{device.path}/current_memory_partition", warnings) or ("",))[
            0
        ],
        memory_modes=modes.offered(f"{device.path}/available_memory_partition", warnings),
        vram_bytes=sum(part.vram_bytes for part in partitions) if total is None else total,
        partitions=partitions,
    )


def _partitions(
    device: Device, bindings: Sequence[Binding], mode: str, total: int | None, warnings: list[str]
) -> tuple[Partition, ...]:
    """Return the partitions of a GPU, ascending by index."""
    indexes = _indexes(device, bindings, mode)
    count = modes.FIXED_MODES.get(mode, max(indexes) + 1)
    if mode == "cpx":
        # XCCs come in pairs, one pair a die: an odd number tells that a node is missing.
        count += count % 2
    partitions = []
    for index, binding in zip(indexes, bindings, strict=True):
        agent = binding.agent
        try:
            vram = kfd.vram(agent)
        except sysfs.FileError as error:
            if mode in {"", "spx"}:
                # Its siblings could no longer be told from a whole GPU.
                raise
            warnings.append(f"partition {index} of GPU {device.pci} is left out: {error}")
            continue
        partitions.append(
            Partition(
                index=index,
                kfd_node=agent.number,
                render_minor=binding.render,
                card_minor=binding.card,
                gfx_target_version=agent.gfx_target_version,
                cus=agent.cus,
                xccs=agent.xccs,
                queues=agent.queues,
                vram_bytes=(total or 0) // count if vram is None else vram,
            )
        )
    if not partitions:
        raise sysfs.FileError("none of its partitions can be used")
    return tuple(sorted(partitions, key=lambda partition: partition.index))


def _indexes(device: Device, bindings: Sequence[Binding], mode: str) -> Sequence[int]:
    """Return each binding's place among the partitions of its GPU.

    The kernel tells it in the function bits of the location (some kernels: in its top four bits),
    so that a missing partition does not shift the others. Where they do not tell the bindings apart
    their order counts.
    """
    if len(bindings) == 1 and mode in {"", "spx"}:
        return (0,)
    told = [
        (binding.agent.location & 7 ^ device.place[3]) | binding.agent.location >> 28
        for binding in bindings
    ]
    return told if len(set(told)) == len(told) else range(len(bindings))


def _unique_id(device: Device, bindings: Sequence[Binding], mode: str, warnings: list[str]) -> int:
    """Return the serial, from the PCI device or, on kernels without it there, from KFD.

    ROCr knows KFD's number. Where KFD tells another one for a whole GPU, neither is used.
    """
    told = bindings[0].agent.unique_id
    if device.unique_id is None:
        return told if all(binding.agent.unique_id == told for binding in bindings) else 0
    whole = len(bindings) == 1 and mode in {"", "spx"}
    if whole and told and device.unique_id and told != device.unique_id:
        warnings.append(
            f"GPU {device.pci} is addressed by index: its unique id is {device.unique_id:016x} in"
            f" {device.path}/unique_id and {told:016x} in {bindings[0].agent.path}/properties"
        )
        return 0
    return device.unique_id


def _numa(path: str, warnings: list[str]) -> int | None:
    """Return the NUMA node; None where the kernel says -1 or nothing."""
    try:
        if (sysfs.read(path) or "").strip() == "-1":
            return None
    except sysfs.FileError as error:
        warnings.append(f"the NUMA node is not known: {error}")
        return None
    return _optional_number(path, 10, 1 << 16, warnings)


def _optional_number(path: str, base: int, limit: int, warnings: list[str]) -> int | None:
    """Return the number in a file that no decision hangs on; None, with a warning, for garbage."""
    try:
        return sysfs.read_number(path, base, limit)
    except sysfs.FileError as error:
        warnings.append(str(error))
        return None
