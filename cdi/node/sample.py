"""Sample nodes: small descriptions that are expanded into a sysroot of the kernel's shape.

A description names the GPUs of a machine in the order of their KFD nodes; all that follows from
that (addresses, partitions, platform devices, links) is laid as amdgpu and KFD lay it. The demo,
the tests and whoever has no AMD GPU at hand use the same samples. Serial numbers are invented.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError

DESCRIPTIONS = Path(__file__).with_name("samples.json")

PARTITIONS = {"": 1, "spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
"""Partitions by compute mode, of a part with 8 XCCs."""

FIRST_RENDER = 128
"""Linux numbers render nodes from here."""

PCIE = 2
"""KFD type of a PCIe link."""

XGMI = 11
"""KFD type of an XGMI link."""

AMDGPU = "sys/bus/pci/drivers/amdgpu"
KFD = "sys/devices/virtual/kfd/kfd"


@dataclass(frozen=True, slots=True)
class _Part:
    """A product. Ids are hexadecimal; ``xcps`` counts the platform devices that amdgpu adds."""

    device: str
    revision: str
    pci_class: str
    product: str
    version: int
    cus: int
    simd_per_cu: int
    xccs: int
    arrays: int
    queues: int
    vram: int
    shared: bool = False
    """Whether HIP gets memory of the CPUs instead of the VRAM."""
    xcps: int = 0
    modes: tuple[str, ...] = ()
    memory_modes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Host:
    """The CPUs of a machine and their memory, in bytes."""

    nodes: int
    cores: int = 96
    """Of each node."""
    ram: int = 1 << 40
    """Of each node."""
    gtt: int = 0
    """How much all GPUs together may have of it; half of all, as the kernel has it, if 0."""

    @property
    def gtt_total(self) -> int:
        return self.gtt or self.nodes * self.ram // 2


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU and where it sits; serial and hive are hexadecimal, an empty serial means none."""

    part: _Part
    pci: str
    serial: str
    numa: int
    card: int
    render: int
    first_node: int
    first_xcp: int
    mode: str
    memory: str
    hive: str

    @property
    def partitions(self) -> int:
        return PARTITIONS[self.mode]

    @property
    def nodes(self) -> range:
        """The KFD nodes of the partitions."""
        return range(self.first_node, self.first_node + self.partitions)


@dataclass(frozen=True, slots=True)
class _Tree:
    """What is to be written below the target: contents of files, and targets of links, by path."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def add(self, folder: str, **contents: object) -> None:
        """Add files of one line to a folder."""
        for name, content in contents.items():
            self.files[f"{folder}/{name}"] = f"{content}\n"

    def add_properties(self, folder: str, **values: int) -> None:
        """Add a KFD file of properties to a folder."""
        lines = [f"{name} {value}\n" for name, value in values.items()]
        self.files[f"{folder}/properties"] = "".join(lines)

    def link(self, path: str, target: str) -> None:
        """Add a link between two paths of the tree, relative as sysfs has them."""
        self.links[path] = os.path.relpath(target, path.rpartition("/")[0])


def names() -> tuple[str, ...]:
    """Return the names of the samples, in alphabetical order."""
    return tuple(sorted(json.loads(DESCRIPTIONS.read_text(encoding="ascii"))["nodes"]))


def edition() -> str:
    """Return what is another text whenever the same sample would be laid out in another way."""
    sources = DESCRIPTIONS.read_bytes() + Path(__file__).read_bytes()
    return f"{zlib.crc32(sources):08x}"


def about(name: str) -> str:
    """Return what a sample is, in one line. Raises PermanentError for an unknown name."""
    return str(_describe(name)[1]["about"])


def expand(name: str, target: Path) -> None:
    """Write a sample's ``sys`` and ``dev`` below a folder, which is made where it is missing.

    Device nodes are plain empty files. Raises PermanentError for an unknown name, or where the
    folder has a ``sys`` or ``dev`` already or cannot be written.
    """
    parts, node = _describe(name)
    tree = _layout(parts, node)
    try:
        if any((target / top).exists() for top in ("sys", "dev")):
            raise PermanentError(
                f"expected a place for the sample {name}, found sys or dev in {target} already",
                "name another folder",
            )
        _write(tree, os.fspath(target))
    except OSError as error:
        raise PermanentError(
            f"expected to write the sample {name} to {target}, found: {error.strerror}",
            "name a folder that can be written",
        ) from None


def _describe(name: str) -> tuple[dict[str, _Part], dict[str, Any]]:
    """Return the parts, and what the description says of one node."""
    described = json.loads(DESCRIPTIONS.read_text(encoding="ascii"))
    if name not in described["nodes"]:
        raise PermanentError(
            f"expected the name of a sample, found {name[:80]!r}",
            "use one of " + ", ".join(names()),
        )
    parts = {key: _Part(**values) for key, values in described["parts"].items()}
    return parts, described["nodes"][name]


# From the description to a tree


def _layout(parts: dict[str, _Part], node: dict[str, Any]) -> _Tree:
    tree = _Tree()
    sizes = {name: node[name] for name in ("cores", "ram", "gtt") if name in node}
    host = _Host(node["cpus"], **sizes)
    gpus = _gpus(parts, node["gpus"], host.nodes)
    tree.add("sys/module/amdgpu", initstate="live")
    tree.link("sys/module/amdgpu/drivers/pci:amdgpu", AMDGPU)
    tree.link(f"{AMDGPU}/module", "sys/module/amdgpu")
    tree.link("sys/class/kfd/kfd", KFD)
    tree.files["dev/kfd"] = ""
    tree.add(f"{KFD}/topology", generation_id=len(gpus) + 1)
    for cpu in range(host.nodes):
        _add_cpu_node(tree, cpu, host)
    for position, gpu in enumerate(gpus):
        _add_pci_device(tree, gpu, position, host)
        for index in range(gpu.partitions):
            _add_gpu_node(tree, gpu, index, gpus, host)
    for other in node.get("others", ()):
        _add_other(tree, other)
    return tree


def _gpus(parts: dict[str, _Part], described: list[dict[str, Any]], cpus: int) -> list[_Gpu]:
    """Return the GPUs, with the minors and numbers that follow from those before them.

    amdgpu gives a GPU its own minors and then those of its platform devices, in every mode.
    """
    gpus: list[_Gpu] = []
    card, render, node, xcp = 0, FIRST_RENDER, cpus, 0
    for entry in described:
        part = parts[entry["part"]]
        gpu = _Gpu(
            part=part,
            pci=entry["pci"],
            serial=entry["serial"],
            numa=entry["numa"],
            card=entry.get("card", card),
            render=entry.get("render", render),
            first_node=node,
            first_xcp=xcp,
            mode=entry.get("mode", ""),
            memory=entry.get("memory", ""),
            hive=entry.get("hive", "0"),
        )
        gpus.append(gpu)
        card, render = gpu.card + part.xcps + 1, gpu.render + part.xcps + 1
        node, xcp = node + gpu.partitions, xcp + part.xcps
    return gpus


def _pci_folder(pci: str) -> str:
    """Return a PCI device's own folder: behind a bridge on the bus before."""
    domain, bus = pci[:4], int(pci[5:7], 16)
    root = f"{domain}:{bus - 1:02x}"
    return f"sys/devices/pci{root}/{root}:01.1/{pci}"


def _add_pci_device(tree: _Tree, gpu: _Gpu, position: int, host: _Host) -> None:
    part = gpu.part
    folder = _pci_folder(gpu.pci)
    tree.add(
        folder,
        vendor="0x1002",
        device=f"0x{part.device}",
        revision=f"0x{part.revision}",
        **{"class": f"0x{part.pci_class}"},
        numa_node=gpu.numa,
        mem_info_vram_total=part.vram,
        mem_info_vram_used=part.vram >> 8,
        mem_info_gtt_total=host.gtt_total,
        gpu_busy_percent=0,
    )
    tree.add(f"{folder}/ras", umc_err_count="ue: 0\nce: 0")
    tree.add(
        f"{folder}/hwmon/hwmon{position + 2}",
        name="amdgpu",
        temp1_input=41000 + 1000 * position,
        power1_average=130_000_000,
    )
    if gpu.serial:
        tree.add(folder, unique_id=gpu.serial)
    if part.product:
        tree.add(folder, product_name=part.product)
    if part.modes:
        tree.add(
            folder,
            current_compute_partition=gpu.mode.upper(),
            available_compute_partition=", ".join(part.modes).upper(),
            current_memory_partition=gpu.memory.upper(),
            available_memory_partition=", ".join(part.memory_modes).upper(),
        )
    _add_pci_links(tree, gpu.pci, "amdgpu")
    _add_drm(tree, folder, gpu.card, gpu.render)
    for xcp in range(part.xcps):
        platform = f"sys/devices/platform/amdgpu_xcp_{gpu.first_xcp + xcp}"
        _add_drm(tree, platform, gpu.card + xcp + 1, gpu.render + xcp + 1)


def _add_pci_links(tree: _Tree, pci: str, driver: str) -> None:
    folder = _pci_folder(pci)
    tree.link(f"sys/bus/pci/devices/{pci}", folder)
    tree.link(f"sys/bus/pci/drivers/{driver}/{pci}", folder)
    tree.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")


def _add_drm(tree: _Tree, device: str, card: int, render: int) -> None:
    """Add the DRM nodes of a device, and theirs in ``/dev/dri``."""
    for node, minor in ((f"card{card}", card), (f"renderD{render}", render)):
        folder = f"{device}/drm/{node}"
        tree.add(folder, dev=f"226:{minor}")
        tree.link(f"{folder}/device", device)
        tree.link(f"sys/class/drm/{node}", folder)
        tree.files[f"dev/dri/{node}"] = ""


def _add_other(tree: _Tree, other: dict[str, Any]) -> None:
    """Add another vendor's GPU."""
    folder = _pci_folder(other["pci"])
    tree.add(
        folder,
        vendor=f"0x{other['vendor']}",
        device=f"0x{other['device']}",
        **{"class": "0x030000"},
        numa_node=other["numa"],
    )
    _add_pci_links(tree, other["pci"], other["driver"])
    _add_drm(tree, folder, other["card"], other["render"])


def _add_cpu_node(tree: _Tree, number: int, host: _Host) -> None:
    folder = f"{KFD}/topology/nodes/{number}"
    tree.add(folder, gpu_id=0, name="")
    tree.add_properties(
        folder,
        cpu_cores_count=host.cores,
        simd_count=0,
        mem_banks_count=1,
        simd_per_cu=0,
        gfx_target_version=0,
        vendor_id=0,
        device_id=0,
        location_id=0,
        domain=0,
        drm_render_minor=0,
        hive_id=0,
        num_cp_queues=0,
    )
    tree.add_properties(f"{folder}/mem_banks/0", heap_type=0, size_in_bytes=host.ram, flags=0)


def _add_gpu_node(tree: _Tree, gpu: _Gpu, index: int, gpus: list[_Gpu], host: _Host) -> None:
    part, count = gpu.part, gpu.partitions
    number = gpu.nodes[index]
    folder = f"{KFD}/topology/nodes/{number}"
    bus, device, function = int(gpu.pci[5:7], 16), int(gpu.pci[8:10], 16), int(gpu.pci[11])
    links = _links(gpu, gpus) if index == 0 else []
    tree.add(folder, gpu_id=(number * 40503 & 0xFFFF) or 1, name="ip discovery")
    tree.add_properties(
        folder,
        cpu_cores_count=0,
        simd_count=part.cus // count * part.simd_per_cu,
        mem_banks_count=1,
        io_links_count=len(links),
        simd_id_base=2147488064,
        wave_front_size=64 if part.version < 100000 else 32,
        array_count=part.arrays // count,
        simd_arrays_per_engine=1 if part.version < 100000 else 2,
        simd_per_cu=part.simd_per_cu,
        gfx_target_version=part.version,
        vendor_id=4098,
        device_id=int(part.device, 16),
        # In partition modes KFD lays the partition over the function bits.
        location_id=bus << 8 | device << 3 | function | index,
        domain=int(gpu.pci[:4], 16),
        drm_render_minor=gpu.render + index,
        hive_id=int(gpu.hive, 16),
        num_cp_queues=part.queues,
        unique_id=int(gpu.serial or "0", 16),
        num_xcc=part.xccs // count,
    )
    size = part.vram
    if part.shared:
        # With partitions (MI300A) it is the part of one NUMA node, otherwise all of it.
        size = host.gtt_total // (host.nodes if part.modes else 1)
    bank = f"{folder}/mem_banks/0"
    tree.add_properties(bank, heap_type=1, size_in_bytes=size // count, flags=0)
    for link, (kind, target, weight) in enumerate(links):
        tree.add_properties(
            f"{folder}/io_links/{link}",
            type=kind,
            version_major=0,
            version_minor=0,
            node_from=number,
            node_to=target,
            weight=weight,
            max_bandwidth=64000,
            flags=1,
        )


def _links(gpu: _Gpu, gpus: list[_Gpu]) -> list[tuple[int, int, int]]:
    """Return type, target node and weight of the links of a GPU's first partition.

    The other partitions have the same links; they are left out, being thousands of files.
    """
    links = [(PCIE, max(0, gpu.numa), 20)]
    for peer in gpus:
        if gpu.hive != "0" and peer.hive == gpu.hive:
            weight = 13 if peer is gpu else 15
            links += [(XGMI, node, weight) for node in peer.nodes if node != gpu.first_node]
    return links


# To the disk


def _write(tree: _Tree, target: str) -> None:
    """Write a tree: thousands of small files, so with one call for each thing that is made."""
    Path(target).mkdir(parents=True, exist_ok=True)
    folders: set[str] = set()
    for path in (*tree.files, *tree.links):
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    for folder in sorted(folders):
        Path(target, folder).mkdir()
    for path, content in tree.files.items():
        handle = os.open(f"{target}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(handle, content.encode("ascii"))
        finally:
            os.close(handle)
    for path, destination in tree.links.items():
        Path(target, path).symlink_to(destination)
