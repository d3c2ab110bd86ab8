"""Machines that are whole, in every shape they come in. Bad ones: test_topology_faults.py."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cdi.errors import TemporaryError
from cdi.node import sample, topology
from tests.captures import CPX, MI210, change, lay, write

if TYPE_CHECKING:
    from pathlib import Path

    from cdi.node.gpu import Gpu, Partition

MI300X_BYTES = 206141652992  # 196592 MiB
CPX_BYTES = 25767706624  # an eighth of it


def grow(name: str, folder: Path) -> Path:
    sample.expand(name, folder)
    return folder


def nodes(root: Path) -> Path:
    return root / "sys/devices/virtual/kfd/kfd/topology/nodes"


def device(root: Path, pci: str) -> Path:
    return (root / "sys/bus/pci/devices" / pci).resolve()


def by_pci(root: Path) -> dict[str, Gpu]:
    return {gpu.pci: gpu for gpu in topology.read_node(root).gpus}


# Captured machines


@pytest.fixture(scope="module")
def cpx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lay(
        CPX,
        tmp_path_factory.mktemp("cpx"),
        current_compute_partition="CPX",
        current_memory_partition="NPS1",
        mem_info_vram_total=str(MI300X_BYTES),
    )


def test_cpx_capture_has_63_partitions_under_their_own_names(cpx: Path) -> None:
    node = topology.read_node(cpx)
    assert node.warnings == ()
    assert [gpu.pci for gpu in node.gpus] == [
        "0000:05:00.0",
        "0000:27:00.0",
        "0000:47:00.0",
        "0000:65:00.0",
        "0000:85:00.0",
        "0000:a7:00.0",
        "0000:c7:00.0",
        "0000:e5:00.0",
    ]
    assert [len(gpu.partitions) for gpu in node.gpus] == [8, 8, 8, 8, 8, 8, 8, 7]
    # The capture ends with location 58630, 0xe506: what is missing is the last GPU's partition 7.
    assert [part.index for part in node.gpus[7].partitions] == [0, 1, 2, 3, 4, 5, 6]
    last = node.gpus[7].partitions[-1]
    assert (last.kfd_node, last.render_minor, last.card_minor) == (64, 190, 62)
    parts = [part for gpu in node.gpus for part in gpu.partitions]
    assert {(part.gfx, part.cus, part.xccs, part.atom) for part in parts} == {("gfx942", 38, 1, 1)}
    assert {part.queues for part in parts} == {24}
    assert [part.render_minor for part in parts] == list(range(128, 191))
    # The capture has no memory banks: the GPU's memory is parted, in eight even for the last GPU.
    assert {part.memory_bytes for part in parts} == {CPX_BYTES}


def test_cpx_capture_identities(cpx: Path) -> None:
    gpu = topology.read_node(cpx).gpus[0]
    # 16404946649897475633 in decimal, the unique_id that KFD tells for node 2.
    assert gpu.unique_id == 0xE3AA140F9A5F9E31
    assert gpu.uuid == "e3ff74a1-0000-1000-80aa-140f9a5f9e31"
    assert gpu.rocr_id == "", "all partitions share the id, so ROCr cannot tell them apart by it"
    assert gpu.hive_id == 15188982192727901047
    assert gpu.compute_mode == "cpx"


def test_cpx_capture_is_one_hive(cpx: Path) -> None:
    node = topology.read_node(cpx)
    everyone = {gpu.pci for gpu in node.gpus}
    for gpu in node.gpus:
        assert set(gpu.xgmi_peers) == everyone - {gpu.pci}
        assert list(gpu.xgmi_peers) == sorted(gpu.xgmi_peers)


@pytest.mark.parametrize("missing", [0, 3, 6])
def test_missing_partition_does_not_shift_the_others(
    cpx: Path, tmp_path: Path, missing: int
) -> None:
    # Nodes 10 to 17 are the partitions of the second GPU, at location 9984 to 9991.
    lost = cpx / f"sys/class/kfd/kfd/topology/nodes/{10 + missing}"
    lost.rename(tmp_path / "lost")
    try:
        parts = topology.read_node(cpx).gpus[1].partitions
    finally:
        (tmp_path / "lost").rename(lost)
    assert [part.index for part in parts] == [index for index in range(8) if index != missing]
    assert all(part.render_minor == 136 + part.index for part in parts)
    assert all(part.kfd_node == 10 + part.index for part in parts)


def test_mi210_capture(tmp_path: Path) -> None:
    root = lay(MI210, tmp_path, mem_info_vram_total="68702699520")
    node = topology.read_node(root)
    assert node.warnings == ()
    assert [gpu.pci for gpu in node.gpus] == [
        "0000:03:00.0",
        "0000:26:00.0",
        "0000:43:00.0",
        "0000:63:00.0",
        "0000:83:00.0",
        "0000:a3:00.0",
        "0000:c3:00.0",
        "0000:e3:00.0",
    ]
    for gpu in node.gpus:
        (part,) = gpu.partitions
        assert (part.gfx, part.cus, part.xccs, part.atom) == ("gfx90a", 104, 1, 1)
        assert (part.index, part.queues, part.memory_bytes) == (0, 24, 68702699520)
        assert (gpu.compute_mode, gpu.compute_modes, gpu.partitioned) == ("", (), False)
    # Location 25344, unique id 1801979520617338022, the first node: not the first by address.
    gpu = node.gpus[3]
    assert (gpu.index, gpu.partitions[0].kfd_node, gpu.partitions[0].render_minor) == (3, 2, 128)
    assert gpu.uuid == "19ff740f-0000-1000-8001-ead3a2ecd4a6"
    assert gpu.rocr_id == "GPU-1901ead3a2ecd4a6"
    assert gpu.hive_id == 12609507387757274807


def test_mi210_capture_xgmi_peers(tmp_path: Path) -> None:
    # Links of type 11: nodes 2, 3, 4, 5 among each other, and 6, 7, 8, 9; the rest is PCIe.
    first = ("0000:03:00.0", "0000:26:00.0", "0000:43:00.0", "0000:63:00.0")
    second = ("0000:83:00.0", "0000:a3:00.0", "0000:c3:00.0", "0000:e3:00.0")
    gpus = by_pci(lay(MI210, tmp_path))
    for hive in (first, second):
        for pci in hive:
            assert gpus[pci].xgmi_peers == tuple(peer for peer in hive if peer != pci)


# Identity


def test_uuid_of_a_known_serial(tmp_path: Path) -> None:
    root = grow("mi300x", tmp_path)
    write(device(root, "0000:05:00.0") / "device", "0x74b5")
    gpu = topology.read_node(root).gpus[0]
    assert gpu.unique_id == 0x8E1BB56457ADDD1B
    assert gpu.uuid == "8eff74b5-0000-1000-801b-b56457addd1b"
    assert gpu.rocr_id == "GPU-8e1bb56457addd1b"


def test_same_unique_id_twice_is_nobodys(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    other = device(root, "0000:03:00.0") / "unique_id"
    shutil.copy(other, device(root, "0000:43:00.0") / "unique_id")
    change(nodes(root) / "2/properties", unique_id=0x5F2E90B7C4D1863A)
    node = topology.read_node(root)
    assert [(gpu.unique_id, gpu.uuid, gpu.rocr_id) for gpu in node.gpus] == [(0, "", "")] * 2
    (warning,) = node.warnings
    assert "0000:03:00.0 and 0000:43:00.0" in warning
    assert "5f2e90b7c4d1863a" in warning


def test_unique_id_that_kfd_knows_otherwise_is_not_used(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    change(nodes(root) / "1/properties", unique_id=1)
    node = topology.read_node(root)
    assert [gpu.rocr_id for gpu in node.gpus] == ["", "GPU-b81d64f30ea7952c"]
    (warning,) = node.warnings
    assert "0000:03:00.0" in warning


def test_partitions_with_ids_of_their_own_keep_their_parent(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    for number in range(3, 11):
        change(nodes(root) / f"{number}/properties", unique_id=7000 + number)
    gpu = by_pci(root)["0000:27:00.0"]
    assert len(gpu.partitions) == 8
    assert gpu.unique_id == 0x1FC4A2D07BE93865


# Shapes of machines


def test_mixed_node_keeps_gpus_and_modes_apart(tmp_path: Path) -> None:
    node = topology.read_node(grow("mixed", tmp_path))
    assert node.warnings == ()
    seen = [
        (
            gpu.index,
            gpu.pci,
            gpu.compute_mode,
            len(gpu.partitions),
            gpu.partitions[0].gfx,
            gpu.partitions[0].atom,
            gpu.partitions[0].render_minor,
            gpu.partitions[0].card_minor,
        )
        for gpu in node.gpus
    ]
    assert seen == [
        (0, "0000:05:00.0", "spx", 1, "gfx942", 8, 129, 1),
        (1, "0000:27:00.0", "cpx", 8, "gfx942", 1, 137, 9),
        (2, "0000:83:00.0", "", 1, "gfx1201", 2, 150, 20),
        (3, "0000:c4:00.0", "", 1, "gfx1150", 2, 152, 22),
    ]
    assert node.gpus[0].xgmi_peers == ("0000:27:00.0",)
    assert node.gpus[1].xgmi_peers == ("0000:05:00.0",)
    assert [gpu.numa_node for gpu in node.gpus] == [0, 0, 1, None]


def test_apu_has_no_id(tmp_path: Path) -> None:
    apu = by_pci(grow("mixed", tmp_path))["0000:c4:00.0"]
    assert (apu.unique_id, apu.uuid, apu.rocr_id) == (0, "", "")


def test_another_vendors_gpu_is_not_seen(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    assert (root / "sys/class/drm/renderD128").exists()
    node = topology.read_node(root)
    minors = {part.render_minor for gpu in node.gpus for part in gpu.partitions}
    assert 128 not in minors
    assert "0000:01:00.0" not in {gpu.pci for gpu in node.gpus}


def test_surplus_platform_devices_are_not_partitions(tmp_path: Path) -> None:
    root = grow("mi300x", tmp_path)
    assert len(list((root / "sys/devices/platform").iterdir())) == 56
    node = topology.read_node(root)
    minors = [part.render_minor for gpu in node.gpus for part in gpu.partitions]
    assert minors == [128, 136, 144, 152, 160, 168, 176, 184]


def test_both_spellings_of_platform_devices(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    before = topology.read_node(root)
    for xcp in (root / "sys/devices/platform").iterdir():
        xcp.rename(xcp.with_name(xcp.name.replace("amdgpu_xcp_", "amdgpu_xcp.")))
    assert topology.read_node(root) == before


def test_partition_in_the_top_bits_of_the_location(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    before = topology.read_node(root)
    for index in range(8):
        change(nodes(root) / f"{3 + index}/properties", location_id=0x2700 | index << 28)
    assert topology.read_node(root) == before
    shutil.rmtree(nodes(root) / "5")
    parts = by_pci(root)["0000:27:00.0"].partitions
    assert [part.index for part in parts] == [0, 1, 3, 4, 5, 6, 7]


def test_partitions_of_a_virtual_function(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    driver = root / "sys/bus/pci/drivers/amdgpu"
    (driver / "0000:27:00.0").rename(driver / "0000:27:01.4")
    for index in range(8):
        if index >= 4:  # partitions 0 to 3 leave bit 2 to the function
            shutil.rmtree(nodes(root) / f"{3 + index}")
        else:
            change(nodes(root) / f"{3 + index}/properties", location_id=0x270C | index)
    shutil.rmtree(nodes(root) / "4")
    parts = by_pci(root)["0000:27:01.4"].partitions
    assert [(part.index, part.render_minor) for part in parts] == [(0, 137), (2, 139), (3, 140)]


def test_partitions_that_the_location_does_not_tell_apart_are_counted(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    before = topology.read_node(root)
    for index in range(8):
        change(nodes(root) / f"{3 + index}/properties", location_id=0x2700)
    assert topology.read_node(root) == before


def test_single_partition_left_keeps_its_index(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    for number in (3, 4, 5, 6, 7, 9, 10):
        shutil.rmtree(nodes(root) / str(number))
    gpu = by_pci(root)["0000:27:00.0"]
    assert [(part.index, part.render_minor) for part in gpu.partitions] == [(5, 142)]
    assert gpu.partitioned
    assert gpu.rocr_id == ""


def test_kernel_without_domain_unique_id_and_num_xcc(tmp_path: Path) -> None:
    root = grow("mi210", tmp_path)
    before = topology.read_node(root)
    for number in range(2, 10):
        path = nodes(root) / f"{number}/properties"
        change(path, domain=None, unique_id=None, num_xcc=None)
    assert topology.read_node(root) == before


def test_kernel_that_tells_the_unique_id_in_kfd_only(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    before = topology.read_node(root)
    for pci in ("0000:03:00.0", "0000:43:00.0"):
        (device(root, pci) / "unique_id").unlink()
    assert topology.read_node(root) == before


@pytest.mark.parametrize("told", [None, 0, -1, 4294967295])
def test_kernel_that_tells_no_render_minor(tmp_path: Path, told: int | None) -> None:
    root = grow("rx7900xtx", tmp_path)
    before = topology.read_node(root)
    for number in (1, 2):
        change(nodes(root) / f"{number}/properties", drm_render_minor=told)
    assert topology.read_node(root) == before


def test_gpus_of_several_domains(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    driver = root / "sys/bus/pci/drivers/amdgpu"
    (driver / "0000:43:00.0").rename(driver / "10000:03:00.0")
    change(nodes(root) / "2/properties", domain=0x10000, location_id=0x0300)
    gpus = topology.read_node(root).gpus
    assert [(gpu.pci, gpu.partitions[0].kfd_node) for gpu in gpus] == [
        ("0000:03:00.0", 1),
        ("10000:03:00.0", 2),
    ]


def test_virtual_functions_of_one_device(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    driver = root / "sys/bus/pci/drivers/amdgpu"
    (driver / "0000:03:00.0").rename(driver / "0000:03:02.1")
    (driver / "0000:43:00.0").rename(driver / "0000:03:02.2")
    for number, function in ((1, 1), (2, 2)):
        path = nodes(root) / f"{number}/properties"
        change(path, location_id=0x0310 | function, unique_id=None)
    gpus = topology.read_node(root).gpus
    assert [(gpu.pci, gpu.partitions[0].render_minor, gpu.product) for gpu in gpus] == [
        ("0000:03:02.1", 128, "AMD Radeon RX 7900 XTX"),
        ("0000:03:02.2", 129, "AMD Radeon RX 7900 XTX"),
    ]


def test_card_without_compute_is_left_out_with_a_warning(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    shutil.rmtree(nodes(root) / "1")
    node = topology.read_node(root)
    assert [(gpu.index, gpu.pci) for gpu in node.gpus] == [(0, "0000:43:00.0")]
    (warning,) = node.warnings
    assert "0000:03:00.0" in warning
    assert "KFD" in warning


def test_driver_below_module_only(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    before = topology.read_node(root)
    below_module = root / "sys/module/amdgpu/drivers/pci:amdgpu"
    below_module.unlink()
    below_module.mkdir()
    driver = root / "sys/bus/pci/drivers/amdgpu"
    for pci in ("0000:03:00.0", "0000:43:00.0"):
        (below_module / pci).symlink_to((driver / pci).resolve())
    shutil.rmtree(driver)
    assert topology.read_node(root) == before


# Memory


def memory(part: Partition) -> tuple[int, str]:
    return part.memory_bytes, part.memory_kind


def test_banks_of_both_heaps_of_a_gpu_count_and_no_other(tmp_path: Path) -> None:
    root = grow("rx7900xtx", tmp_path)
    banks = nodes(root) / "1/mem_banks"
    for number, (heap, size) in enumerate([(1, 256 << 20), (2, 24 << 30), (0, 64 << 30), (4, 1)]):
        write(banks / f"{number}/properties", f"heap_type {heap}\nsize_in_bytes {size}")
    (part,) = topology.read_node(root).gpus[0].partitions
    assert part.memory_bytes == (256 << 20) + (24 << 30)


@pytest.mark.parametrize(("mode", "count"), [("DPX", 2), ("QPX", 4)])
def test_vram_is_parted_by_the_mode_where_no_banks_are_listed(
    tmp_path: Path, mode: str, count: int
) -> None:
    root = grow("mixed", tmp_path)
    write(device(root, "0000:27:00.0") / "current_compute_partition", mode)
    for number in range(3, 11):
        shutil.rmtree(nodes(root) / f"{number}/mem_banks")
        if number >= 3 + count - 1:  # one of the mode's partitions is missing
            shutil.rmtree(nodes(root) / str(number))
    gpu = by_pci(root)["0000:27:00.0"]
    assert len(gpu.partitions) == count - 1
    assert {memory(part) for part in gpu.partitions} == {(MI300X_BYTES // count, "VRAM")}


def test_a_part_of_the_vram_is_not_guessed_where_nothing_tells_the_parts(tmp_path: Path) -> None:
    root = grow("mixed", tmp_path)
    (device(root, "0000:27:00.0") / "current_compute_partition").unlink()
    for number in range(3, 11):
        shutil.rmtree(nodes(root) / f"{number}/mem_banks")
    node = topology.read_node(root)
    assert {part.memory_bytes for part in node.gpus[1].partitions} == {0}
    assert len([line for line in node.warnings if "its memory is not known" in line]) == 8


# What users measured: carve-out and limit of GTT, as amdgpu told them, and what HIP was offered.
Z13 = (4294967296, 103079215104, 98304 << 20)  # kernel 7.1, ttm.pages_limit=25165824
CARVED_OUT = (96 << 30, 16 << 30, 100663296 << 10)  # kernel 6.17 with amdgpu 6.16


@pytest.mark.parametrize(
    ("told", "bank", "expected"),
    [
        pytest.param(Z13, Z13[2], (Z13[2], "shared"), id="GTT"),
        # From 6.15 on the larger of the two, which the kernel's cap on VRAM does charge.
        pytest.param(CARVED_OUT, CARVED_OUT[2], (96 << 30, "VRAM"), id="large carve-out"),
        # 6.10 to 6.14 offer GTT even where the carve-out is larger.
        pytest.param(CARVED_OUT, 16 << 30, (16 << 30, "shared"), id="less GTT than VRAM"),
        # Before 6.10 it is the carve-out.
        pytest.param((512 << 20, 15 << 30), 512 << 20, (512 << 20, "VRAM"), id="carve-out"),
        # Of the same size, and so it may be either.
        pytest.param((32 << 30, 32 << 30), 32 << 30, (32 << 30, "shared"), id="either"),
        # amdgpu.gttsize: KFD would give more than GTT has room for.
        pytest.param((1 << 30, 8 << 30), 60 << 30, (8 << 30, "shared"), id="gttsize"),
    ],
)
def test_memory_of_an_apu(
    tmp_path: Path, told: tuple[int, ...], bank: int, expected: tuple[int, str]
) -> None:
    root = grow("strix-halo", tmp_path)
    write(device(root, "0000:c6:00.0") / "mem_info_vram_total", str(told[0]))
    write(device(root, "0000:c6:00.0") / "mem_info_gtt_total", str(told[1]))
    change(nodes(root) / "1/mem_banks/0/properties", size_in_bytes=bank)
    (gpu,) = topology.read_node(root).gpus
    assert memory(gpu.partitions[0]) == expected
    assert gpu.memory_bytes == expected[0]


def test_an_apu_that_is_one_node_with_its_cpus(tmp_path: Path) -> None:
    # Kernels before 6.6 with IOMMUv2 list one node for both, often without banks.
    root = grow("strix-halo", tmp_path)
    change(nodes(root) / "1/properties", cpu_cores_count=8, gfx_target_version=90002)
    assert topology.read_node(root).gpus[0].partitions[0].memory_kind == "shared"
    shutil.rmtree(nodes(root) / "1/mem_banks")
    assert topology.read_node(root).gpus[0].partitions[0].memory_bytes == 0


def test_memory_of_an_mi300a_in_partitions(tmp_path: Path) -> None:
    root = grow("mi300a", tmp_path)
    # The sizes of one that is not partitioned: 98647808 KiB, as rocminfo tells of each.
    gpus = topology.read_node(root).gpus
    assert {memory(gpu.partitions[0]) for gpu in gpus} == {(98647808 << 10, "shared")}
    # No VRAM at all, which some kernels say by having no file.
    (device(root, "0001:02:00.0") / "mem_info_vram_total").unlink()
    assert memory(topology.read_node(root).gpus[1].partitions[0]) == (98647808 << 10, "shared")


def test_partition_modes(tmp_path: Path) -> None:
    gpu = topology.read_node(grow("mi300x", tmp_path)).gpus[0]
    assert (gpu.compute_mode, gpu.memory_mode) == ("spx", "nps1")
    assert gpu.compute_modes == ("spx", "dpx", "qpx", "cpx")
    assert gpu.memory_modes == ("nps1", "nps4")


def test_repartitioning_while_reading_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = grow("rx7900xtx", tmp_path)
    generation = root / "sys/devices/virtual/kfd/kfd/topology/generation_id"
    read_once = topology._read_once
    changes = iter(["91", "92"])

    def change_once(*args: object) -> object:
        node = read_once(*args)
        if value := next(changes, None):
            write(generation, value)
        return node

    monkeypatch.setattr(topology, "_read_once", change_once)
    assert len(topology.read_node(root).gpus) == 2
    changes = iter(["93", "94", "95"])
    with pytest.raises(TemporaryError, match="generation_id"):
        topology.read_node(root)
