"""Reads what a machine has from its sysfs: nothing is executed and nothing else is asked.

Three trees are laid over each other: the PCI devices that amdgpu drives, the GPU nodes of the KFD
topology, and the platform devices that carry the DRM nodes of further partitions. What ties them
is the render minor, checked against the PCI location that KFD tells. A file that cannot be used
costs what it describes, with a warning that names it, and never another GPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdi.cumask import MAX_CUS, RDNA_VERSION
from cdi.errors import PermanentError, TemporaryError
from cdi.node import sysfs
from cdi.node.gpu import Gpu, Node, Partition
from cdi.node.products import Names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MAX_MINOR = 1 << 20
"""Linux keeps 20 bits for a minor number."""

MAX_VRAM = 1 << 50
"""A pebibyte, far above any GPU: the bound that keeps garbage out of the planner's arithmetic."""

VRAM_HEAPS = (1, 2)
"""KFD heap types of VRAM: visible to the CPU, and not."""

XGMI = 11
"""KFD type of an XGMI link."""

MULTI_XCC_VERSION = 90400
"""``gfx_target_version`` from which on a CDNA part may have several XCCs (the MI300 family).

Every kernel that drives these parts also tells ``num_xcc``.
"""

FIXED_MODES = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Partitions by compute mode; in CPX there is one for each XCC."""

MAX_REASONS = 3
"""Warnings told where no GPU can be used; the first few say it all."""

ATTEMPTS = 3
"""How often a topology that changes while it is read is read again."""


@dataclass(frozen=True, slots=True)
class _Card:
    """A PCI device that amdgpu drives."""

    pci: str
    place: tuple[int, int, int, int]
    """Domain, bus, device and function."""
    path: str
    card: int | None
    render: int | None
    unique_id: int | None
    """None where the kernel has no such file."""


@dataclass(frozen=True, slots=True)
class _Agent:
    """A GPU node of the KFD topology."""

    number: int
    path: str
    domain: int | None
    location: int
    render: int | None
    unique_id: int
    hive_id: int
    gfx_target_version: int
    cus: int
    xccs: int
    queues: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A KFD node with the DRM nodes that belong to it."""

    agent: _Agent
    render: int
    card: int | None


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
    cards = list(_cards(sys, warnings))
    agents = list(_agents(nodes, warnings))
    groups = _tie(cards, agents, sys, warnings)
    gpus = []
    for card in cards:
        members = groups.get(card.pci, [])
        try:
            gpus.append((_gpu(card, members, names, warnings), members))
        except sysfs.FileError as error:
            warnings.append(f"GPU {card.pci} is left out: {error}")
    if not gpus:
        found = [*warnings[:MAX_REASONS], "and so on"] if warnings[MAX_REASONS:] else warnings
        raise PermanentError(
            f"expected a GPU that can be used, found none: {'; '.join(found)}",
            "run as root on the host, and see the kernel's log for amdgpu and kfd",
        )
    owners = {member.agent.number: gpu.pci for gpu, members in gpus for member in members}
    disputed = _disputed([gpu for gpu, _ in gpus], warnings)
    return Node(
        gpus=tuple(
            replace(
                gpu,
                index=index,
                unique_id=0 if gpu.unique_id in disputed else gpu.unique_id,
                xgmi_peers=_peers(gpu, nodes, owners, warnings),
            )
            for index, (gpu, _) in enumerate(gpus)
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


# The PCI devices


def _cards(sys: str, warnings: list[str]) -> Iterator[_Card]:
    """Yield the PCI devices that amdgpu drives, ascending by address."""
    folders = (f"{sys}/bus/pci/drivers/amdgpu", f"{sys}/module/amdgpu/drivers/pci:amdgpu")
    names = None
    for folder in folders:
        try:
            names = sysfs.listing(folder)
        except sysfs.FileError as error:
            raise PermanentError(
                str(error), "run as root, on the host or with the host's /sys mounted"
            ) from None
        if names is not None:
            break
    if names is None:
        raise PermanentError(
            f"expected the amdgpu driver, found no folder {folders[0]}",
            "load it with 'modprobe amdgpu'; if that fails the kernel's log says why",
        )
    places = sorted((place, name) for name in names if (place := _pci_place(name)) is not None)
    if not places:
        raise PermanentError(
            f"expected a GPU below {folder}, found none: amdgpu drives no PCI device",
            "see 'lspci -k' for the driver that holds the GPU, such as vfio-pci",
        )
    for place, name in places:
        path = f"{folder}/{name}"
        try:
            card, render = _minors(f"{path}/drm")
            unique_id = sysfs.read_number(f"{path}/unique_id", 16, 1 << 64)
        except sysfs.FileError as error:
            warnings.append(f"GPU {name} is left out: {error}")
        else:
            yield _Card(name.lower(), place, path, card, render, unique_id)


def _pci_place(name: str) -> tuple[int, int, int, int] | None:
    """Return domain, bus, device and function of a PCI address; None for another name."""
    domain, _, rest = name.partition(":")
    bus, _, rest = rest.partition(":")
    device, _, function = rest.partition(".")
    widths = (len(domain), len(bus), len(device), len(function))
    if widths[1:] != (2, 2, 1) or not 4 <= widths[0] <= 8 or not name.isascii():
        return None
    digits = domain + bus + device + function
    if not digits.isalnum():
        return None
    try:
        return int(domain, 16), int(bus, 16), int(device, 16), int(function, 16)
    except ValueError:
        return None


def _minors(folder: str) -> tuple[int | None, int | None]:
    """Return the card and the render minor in a device's own drm folder, None for what it lacks."""
    found: dict[str, int] = {}
    for name in sysfs.listing(folder) or ():
        for kind in ("card", "renderD"):
            digits = name.removeprefix(kind)
            if digits == name or not sysfs.is_decimal(digits):
                continue
            if kind in found or len(digits) > 7 or int(digits) >= MAX_MINOR:
                raise sysfs.FileError(
                    f"expected one {kind} node in {folder}, found {name[:40]} besides"
                )
            found[kind] = int(digits)
    return found.get("card"), found.get("renderD")


# The KFD topology


def _agents(nodes: str, warnings: list[str]) -> Iterator[_Agent]:
    """Yield the GPU nodes of the KFD topology, in ROCr's order."""
    try:
        numbers = sysfs.numbered(nodes)
    except sysfs.FileError as error:
        raise PermanentError(
            str(error), "run as root, on the host or with the host's /sys mounted"
        ) from None
    if numbers is None:
        raise PermanentError(
            f"expected the KFD topology, found no folder {nodes}",
            "use a kernel with CONFIG_HSA_AMD and a GPU that it supports for compute",
        )
    for number in numbers:
        try:
            agent = _agent(number, f"{nodes}/{number}")
        except sysfs.FileError as error:
            warnings.append(f"KFD node {number} is left out: {error}")
        else:
            if agent is not None:
                yield agent


def _agent(number: int, path: str) -> _Agent | None:
    """Return the GPU of a KFD node; None for a node of CPUs only."""
    values = sysfs.Properties(f"{path}/properties")
    simds = values.number("simd_count", 1 << 20)
    if not simds:
        if values.number("cpu_cores_count", 1 << 20, 0):
            return None
        raise sysfs.FileError(f"expected CPUs or SIMDs in {values.path}, found neither")
    simds_per_cu = values.number("simd_per_cu", 1 << 10)
    cus, rest = divmod(simds, simds_per_cu or simds + 1)
    if rest or not 0 < cus <= MAX_CUS:
        raise sysfs.FileError(
            f"expected whole CUs, at most {MAX_CUS}, in {values.path}, found simd_count {simds}"
            f" with simd_per_cu {simds_per_cu}"
        )
    version = values.number("gfx_target_version", 10_000_000)
    if not version:
        raise sysfs.FileError(f"expected a gfx_target_version in {values.path}, found 0")
    # Old kernels do not tell the XCCs, and there is only one then. Where there may be several a
    # missing number must not pass for 1: a mask of single CUs would open the whole GPU.
    several = MULTI_XCC_VERSION <= version < RDNA_VERSION
    xccs = values.number("num_xcc", 256, None if several else 1)
    return _Agent(
        number=number,
        path=path,
        domain=values.number("domain", 1 << 32) if "domain" in values else None,
        location=values.number("location_id", 1 << 32),
        render=_render(values),
        unique_id=values.number("unique_id", 1 << 64, 0),
        hive_id=values.number("hive_id", 1 << 64, 0),
        gfx_target_version=version,
        cus=cus,
        xccs=max(1, xccs),
        queues=values.number("num_cp_queues", 1 << 20, 0),
    )


def _render(values: sysfs.Properties) -> int | None:
    """Return the render minor that a KFD node names; None for 0, a negative or no number."""
    text = values.text("drm_render_minor", "0")
    negative = text.removeprefix("-")
    if negative != text and sysfs.is_decimal(negative):
        return None
    minor = values.number("drm_render_minor", 1 << 32, 0)
    # Some kernels print a negative number as an unsigned one.
    return minor if 0 < minor < MAX_MINOR else None


def _vram(agent: _Agent) -> int | None:
    """Return the bytes of VRAM in a KFD node's memory banks; None if it lists no bank."""
    banks = sysfs.numbered(f"{agent.path}/mem_banks")
    if not banks:
        return None
    total = 0
    for number in banks:
        values = sysfs.Properties(f"{agent.path}/mem_banks/{number}/properties")
        if values.number("heap_type", 1 << 32) in VRAM_HEAPS:
            total += values.number("size_in_bytes", MAX_VRAM)
    return total


def _peers(gpu: Gpu, nodes: str, owners: dict[int, str], warnings: list[str]) -> tuple[str, ...]:
    """Return the addresses of the GPUs that XGMI links reach, from the first partition's links.

    The kernel lists the members of a hive in ``io_links``. ``p2p_links`` are ways through a CPU,
    which carry the type of the way's first link and so prove nothing.
    """
    if not gpu.hive_id:
        return ()
    folder = f"{nodes}/{gpu.partitions[0].kfd_node}/io_links"
    peers = set()
    try:
        for number in sysfs.numbered(folder) or ():
            values = sysfs.Properties(f"{folder}/{number}/properties")
            if values.number("type", 1 << 32) == XGMI:
                peers.add(owners.get(values.number("node_to", 1 << 32)))
    except sysfs.FileError as error:
        warnings.append(f"the XGMI links of GPU {gpu.pci} are not known: {error}")
        return ()
    return tuple(sorted(pci for pci in peers if pci is not None and pci != gpu.pci))


# What belongs together


def _tie(
    cards: Sequence[_Card], agents: Sequence[_Agent], sys: str, warnings: list[str]
) -> dict[str, list[_Member]]:
    """Return the KFD nodes of each PCI address, with their DRM nodes."""
    own = {card.render: card for card in cards if card.render is not None}
    xcps: dict[int, int | None] = {}
    if any(agent.render is not None and agent.render not in own for agent in agents):
        xcps = _xcps(f"{sys}/devices/platform", warnings)
    placed: dict[int, list[tuple[_Card, _Member]]] = {}
    for agent in agents:
        try:
            card = _parent(agent, cards)
            member = _join(agent, card, own, xcps)
        except sysfs.FileError as error:
            warnings.append(f"KFD node {agent.number} is left out: {error}; see {agent.path}")
        else:
            placed.setdefault(member.render, []).append((card, member))
    groups: dict[str, list[_Member]] = {}
    for render, claims in placed.items():
        if len(claims) > 1:
            numbers = " and ".join(str(member.agent.number) for _, member in claims)
            warnings.append(f"KFD nodes {numbers} are left out: each claims renderD{render}")
            continue
        card, member = claims[0]
        groups.setdefault(card.pci, []).append(member)
    return groups


def _join(
    agent: _Agent, card: _Card, own: dict[int, _Card], xcps: dict[int, int | None]
) -> _Member:
    """Return a KFD node with its DRM nodes: the PCI device's own, or those of a partition."""
    owner = card if agent.render is None else own.get(agent.render)
    if owner is card and card.render is not None:
        return _Member(agent, card.render, card.card)
    if owner is None and agent.render in xcps:
        return _Member(agent, agent.render, xcps[agent.render])
    wanted = "a render node" if agent.render is None else f"renderD{agent.render}"
    holder = owner.pci if owner is not None and owner is not card else "no GPU or partition"
    raise sysfs.FileError(f"expected {wanted} with {card.pci}, found it with {holder}")


def _parent(agent: _Agent, cards: Sequence[_Card]) -> _Card:
    """Return the PCI device of a KFD node.

    By bus and device, because the function bits may carry the partition, and by domain where the
    kernel tells it. The unique id decides between several, or where none is there: alone it would
    not do, since some kernels give each partition one of its own.
    """
    slot = (agent.location >> 8 & 0xFF, agent.location >> 3 & 0x1F)
    there = [
        card for card in cards if card.place[1:3] == slot and agent.domain in {None, card.place[0]}
    ]
    if len(there) == 1:
        return there[0]
    same = [
        card for card in there or cards if agent.unique_id and card.unique_id == agent.unique_id
    ]
    if len(same) == 1:
        return same[0]
    exact = [card for card in there if card.place[3] == agent.location & 7]
    if len(exact) == 1:
        return exact[0]
    raise sysfs.FileError(
        f"expected one usable GPU of amdgpu at location_id {agent.location:#x}, found {len(there)}"
    )


def _xcps(platform: str, warnings: list[str]) -> dict[int, int | None]:
    """Return the card minor by render minor of the partitions' platform devices.

    There are more of them than live partitions; those that no KFD node names are not in use.
    """
    found: dict[int, int | None] = {}
    try:
        names = sysfs.listing(platform) or ()
    except sysfs.FileError as error:
        warnings.append(f"partitions may be missing: {error}")
        return found
    for name in sorted(names):
        # Both spellings: amdgpu_xcp_7 and amdgpu_xcp.7.
        if name.startswith(("amdgpu_xcp_", "amdgpu_xcp.")) and sysfs.is_decimal(name[11:]):
            try:
                card, render = _minors(f"{platform}/{name}/drm")
            except sysfs.FileError as error:
                warnings.append(f"the partition {name[:40]} is left out: {error}")
            else:
                if render is not None:
                    found[render] = card
    return found


# The GPU


def _gpu(card: _Card, members: Sequence[_Member], names: Names, warnings: list[str]) -> Gpu:
    """Return the GPU of a PCI device, without its place and its peers."""
    if not members:
        raise sysfs.FileError(
            "expected a node of it in the KFD topology, found none; it is not fit for compute, or"
            " its node cannot be read"
        )
    device_id = sysfs.read_number(f"{card.path}/device", 16, 1 << 16)
    if device_id is None:
        raise sysfs.FileError(f"expected a PCI device id, found no file {card.path}/device")
    revision = _optional_number(f"{card.path}/revision", 16, 1 << 8, warnings) or 0
    mode = _mode(f"{card.path}/current_compute_partition")
    total = sysfs.read_number(f"{card.path}/mem_info_vram_total", 10, MAX_VRAM)
    partitions = _partitions(card, members, mode, total, warnings)
    first = members[0].agent
    try:
        product = sysfs.read(f"{card.path}/product_name")
    except sysfs.FileError as error:
        warnings.append(f"the product name of GPU {card.pci} is taken from a table: {error}")
        product = None
    return Gpu(
        index=0,
        pci=card.pci,
        device_id=device_id,
        revision=revision,
        product=names.market_name(product or "", device_id, revision),
        unique_id=_unique_id(card, members, mode, warnings),
        numa_node=_numa(f"{card.path}/numa_node", warnings),
        hive_id=first.hive_id,
        xgmi_peers=(),
        compute_mode=mode,
        compute_modes=_modes(f"{card.path}/available_compute_partition", warnings),
        memory_mode=(_modes(f"{card.path}/current_memory_partition", warnings) or ("",))[0],
        memory_modes=_modes(f"{card.path}/available_memory_partition", warnings),
        vram_bytes=sum(part.vram_bytes for part in partitions) if total is None else total,
        partitions=partitions,
    )


def _partitions(
    card: _Card, members: Sequence[_Member], mode: str, total: int | None, warnings: list[str]
) -> tuple[Partition, ...]:
    """Return the partitions of a GPU, ascending by index."""
    indexes = _indexes(card, members, mode)
    count = FIXED_MODES.get(mode, max(indexes) + 1)
    if mode == "cpx":
        # XCCs come in pairs, one pair a die: an odd number tells that a node is missing.
        count += count % 2
    partitions = []
    for index, member in zip(indexes, members, strict=True):
        agent = member.agent
        try:
            vram = _vram(agent)
        except sysfs.FileError as error:
            if mode in {"", "spx"}:
                # Its siblings could no longer be told from a whole GPU.
                raise
            warnings.append(f"partition {index} of GPU {card.pci} is left out: {error}")
            continue
        partitions.append(
            Partition(
                index=index,
                kfd_node=agent.number,
                render_minor=member.render,
                card_minor=member.card,
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


def _indexes(card: _Card, members: Sequence[_Member], mode: str) -> Sequence[int]:
    """Return each member's place among the partitions of its GPU.

    The kernel tells it in the function bits of the location (some kernels: in its top four bits),
    so that a missing partition does not shift the others. Where they do not tell the members apart
    their order counts.
    """
    if len(members) == 1 and mode in {"", "spx"}:
        return (0,)
    told = [
        (member.agent.location & 7 ^ card.place[3]) | member.agent.location >> 28
        for member in members
    ]
    return told if len(set(told)) == len(told) else range(len(members))


def _unique_id(card: _Card, members: Sequence[_Member], mode: str, warnings: list[str]) -> int:
    """Return the serial, from the PCI device or, on kernels without it there, from KFD.

    ROCr knows KFD's number. Where KFD tells another one for a whole GPU, neither is used.
    """
    told = members[0].agent.unique_id
    if card.unique_id is None:
        return told if all(member.agent.unique_id == told for member in members) else 0
    whole = len(members) == 1 and mode in {"", "spx"}
    if whole and told and card.unique_id and told != card.unique_id:
        warnings.append(
            f"GPU {card.pci} is addressed by index: its unique id is {card.unique_id:016x} in"
            f" {card.path}/unique_id and {told:016x} in {members[0].agent.path}/properties"
        )
        return 0
    return card.unique_id


def _mode(path: str) -> str:
    """Return the compute partition mode in lower case; empty where there is none."""
    text = sysfs.read(path)
    if text is None or text == "UNKNOWN\n":
        return ""
    text = text.strip()
    if not (text.isascii() and text.isalnum() and len(text) <= 16):
        raise sysfs.FileError(f"expected a partition mode in {path}, found {sysfs.shown(text)}")
    return text.lower()


def _modes(path: str, warnings: list[str]) -> tuple[str, ...]:
    """Return the modes of a list such as ``SPX, DPX``, in lower case; only shown to the user."""
    try:
        text = (sysfs.read(path) or "").strip()
    except sysfs.FileError as error:
        warnings.append(f"partition modes are not known: {error}")
        return ()
    modes = tuple(mode.strip().lower() for mode in text.split(",")) if text else ()
    if len(text) > 200 or not all(mode.isascii() and mode.isalnum() for mode in modes):
        warnings.append(f"expected partition modes in {path}, found {sysfs.shown(text)}")
        return ()
    return tuple(mode for mode in modes if mode != "unknown")


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
