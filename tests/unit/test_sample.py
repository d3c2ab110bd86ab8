from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cdi.errors import PermanentError
from cdi.node import sample, topology
from tests.captures import REPOSITORY, properties, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every sample, expanded; not to be changed."""
    top = tmp_path_factory.mktemp("samples")
    for name in sample.names():
        sample.expand(name, top / name)
    return {name: top / name for name in sample.names()}


def listing(folder: Path) -> dict[str, str]:
    """What a tree holds: contents of files and targets of links by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text(encoding="ascii")
    return found


def test_names() -> None:
    assert sample.names() == (
        "mi210",
        "mi300a",
        "mi300x",
        "mi300x-cpx",
        "mixed",
        "rx7900xtx",
        "strix-halo",
    )
    assert all(sample.about(name) for name in sample.names())


def test_mi300x(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["mi300x"])
    assert node.warnings == ()
    assert len(node.gpus) == 8
    pcis = {gpu.pci for gpu in node.gpus}
    for gpu in node.gpus:
        (part,) = gpu.partitions
        assert (gpu.device_id, gpu.product) == (0x74A1, "AMD Instinct MI300X")
        assert (gpu.compute_mode, gpu.memory_mode) == ("spx", "nps1")
        assert (part.cus, part.xccs, part.gfx, part.atom) == (304, 8, "gfx942", 8)
        assert gpu.memory_bytes == part.memory_bytes == 196592 << 20
        assert set(gpu.xgmi_peers) == pcis - {gpu.pci}
    assert [gpu.numa_node for gpu in node.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({gpu.uuid for gpu in node.gpus}) == 8


def test_mi300x_cpx(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["mi300x-cpx"])
    assert node.warnings == ()
    assert [len(gpu.partitions) for gpu in node.gpus] == [8] * 8
    parts = [part for gpu in node.gpus for part in gpu.partitions]
    assert {(part.cus, part.xccs, part.atom) for part in parts} == {(38, 1, 1)}
    assert {part.memory_bytes for part in parts} == {24574 << 20}
    assert [part.render_minor for part in parts] == list(range(128, 192))
    assert [part.kfd_node for part in parts] == list(range(2, 66))
    assert [part.index for part in parts] == [*range(8)] * 8
    assert all(len(gpu.xgmi_peers) == 7 for gpu in node.gpus)


def test_mi210(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["mi210"])
    assert node.warnings == ()
    assert len(node.gpus) == 8
    assert {gpu.partitions[0].cus for gpu in node.gpus} == {104}
    assert node.gpus[0].xgmi_peers == ("0000:26:00.0", "0000:43:00.0", "0000:63:00.0")
    # As on the captured machine the order of KFD is not that of the addresses.
    assert [gpu.partitions[0].kfd_node for gpu in node.gpus] == [4, 5, 3, 2, 8, 9, 7, 6]


def test_rx7900xtx(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["rx7900xtx"])
    assert node.warnings == ()
    for gpu in node.gpus:
        (part,) = gpu.partitions
        assert gpu.product == "AMD Radeon RX 7900 XTX"
        assert (part.cus, part.gfx, part.atom) == (96, "gfx1100", 2)
        assert (gpu.compute_mode, gpu.hive_id, gpu.numa_node) == ("", 0, None)


def test_mixed(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["mixed"])
    assert node.warnings == ()
    assert [gpu.product for gpu in node.gpus] == [
        "AMD Instinct MI300X",
        "AMD Instinct MI300X",
        "AMD Radeon RX 9070 XT",
        "AMD Radeon 890M Graphics",
    ]


def test_strix_halo(roots: dict[str, Path]) -> None:
    (gpu,) = topology.read_node(roots["strix-halo"]).gpus
    (part,) = gpu.partitions
    assert (gpu.device_id, gpu.product) == (0x1586, "AMD Radeon 8060S Graphics")
    # 20 WGPs; HIP reported "Total VRAM: 98304 MiB" with ttm.pages_limit=25165824.
    assert (part.cus, part.gfx, part.atom, part.kfd_node) == (40, "gfx1151", 2, 1)
    assert (part.memory_bytes, part.memory_kind) == (25165824 * 4096, "shared")
    assert part.memory_bytes == 98304 << 20
    assert (gpu.uuid, gpu.numa_node, gpu.compute_mode) == ("", None, "")


def test_strix_halo_properties_are_those_of_real_ones(roots: dict[str, Path]) -> None:
    nodes = roots["strix-halo"] / "sys/class/kfd/kfd/topology/nodes"
    cpu, values = properties(nodes / "0/properties"), properties(nodes / "1/properties")
    reported = {
        "cpu_cores_count": 0,
        "simd_count": 80,
        "mem_banks_count": 1,
        "wave_front_size": 32,
        "array_count": 4,
        "simd_arrays_per_engine": 2,
        "simd_per_cu": 2,
        "gfx_target_version": 110501,
        "vendor_id": 4098,
        "device_id": 5510,
        "location_id": 50688,
        "domain": 0,
        "drm_render_minor": 128,
        "hive_id": 0,
        "unique_id": 0,
        "num_xcc": 1,
    }
    assert {name: values[name] for name in reported} == reported
    assert (cpu["cpu_cores_count"], cpu["simd_count"]) == (32, 0)
    device = roots["strix-halo"] / "sys/bus/pci/devices/0000:c6:00.0"
    assert (device / "class").read_text(encoding="ascii") == "0x038000\n"
    assert (device / "mem_info_gtt_total").read_text(encoding="ascii") == "103079215104\n"


def test_mi300a(roots: dict[str, Path]) -> None:
    node = topology.read_node(roots["mi300a"])
    assert [gpu.pci for gpu in node.gpus] == [f"000{domain}:02:00.0" for domain in range(4)]
    for index, gpu in enumerate(node.gpus):
        (part,) = gpu.partitions
        assert (part.cus, part.xccs, part.gfx, part.atom) == (228, 6, "gfx942", 6)
        assert (part.kfd_node, part.render_minor) == (4 + index, 128 + 8 * index)
        assert (part.memory_bytes, part.memory_kind) == (98647808 << 10, "shared")
        assert len(gpu.xgmi_peers) == 3


@pytest.mark.parametrize("name", sample.names())
def test_every_node_has_its_device_file(roots: dict[str, Path], name: str) -> None:
    node = topology.read_node(roots[name])
    dri = {path.name for path in (roots[name] / "dev/dri").iterdir()}
    assert (roots[name] / "dev/kfd").is_file()
    for gpu in node.gpus:
        for part in gpu.partitions:
            assert {f"renderD{part.render_minor}", f"card{part.card_minor}"} <= dri


@pytest.mark.parametrize("name", sample.names())
def test_links_lead_somewhere_inside(roots: dict[str, Path], name: str) -> None:
    for path in roots[name].rglob("*"):
        if path.is_symlink():
            assert not path.readlink().is_absolute()
            assert path.resolve(strict=True).is_relative_to(roots[name] / "sys")


def test_shape_of_sysfs(roots: dict[str, Path]) -> None:
    root = roots["mi300x"]
    device = root / "sys/devices/pci0000:04/0000:04:01.1/0000:05:00.0"
    for way in (
        "bus/pci/devices/0000:05:00.0",
        "bus/pci/drivers/amdgpu/0000:05:00.0",
        "module/amdgpu/drivers/pci:amdgpu/0000:05:00.0",
        "class/drm/renderD128/device",
    ):
        assert (root / "sys" / way).resolve() == device
    assert (device / "driver").resolve() == root / "sys/bus/pci/drivers/amdgpu"
    assert (device / "drm/renderD128/dev").read_text(encoding="ascii") == "226:128\n"
    assert (device / "unique_id").read_text(encoding="ascii") == "8e1bb56457addd1b\n"
    assert (device / "available_compute_partition").read_text(encoding="ascii") == (
        "SPX, DPX, QPX, CPX\n"
    )
    assert (root / "sys/class/kfd/kfd").readlink().as_posix() == "../../devices/virtual/kfd/kfd"


def test_cpx_properties_are_those_of_a_captured_node(roots: dict[str, Path]) -> None:
    values = properties(roots["mi300x-cpx"] / "sys/class/kfd/kfd/topology/nodes/9/properties")
    # Node 9 of the captured machine, whose serial and hive are not those of the sample.
    captured = {
        "simd_count": 152,
        "array_count": 4,
        "simd_arrays_per_engine": 1,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "vendor_id": 4098,
        "device_id": 29857,
        "location_id": 1287,
        "domain": 0,
        "drm_render_minor": 135,
        "num_cp_queues": 24,
        "num_xcc": 1,
    }
    assert {name: values[name] for name in captured} == captured


def test_same_tree_each_time(roots: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, cdi.node.sample as s; s.expand('mixed', pathlib.Path(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "two")],
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": "7"},
    )
    assert listing(roots["mixed"]) == listing(tmp_path / "two")


def test_descriptions_are_small() -> None:
    assert sample.DESCRIPTIONS.stat().st_size < 8192
    json.loads(sample.DESCRIPTIONS.read_text(encoding="ascii"))


@pytest.mark.parametrize("name", ["", "mi400", "../mi300x", "x" * 500, "\0"])
def test_unknown_name_says_which_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(PermanentError, match="mi300x-cpx") as error:
        sample.expand(name, tmp_path)
    assert len(str(error.value)) < 300
    assert list(tmp_path.iterdir()) == []


def test_a_taken_place_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "sys/mine", "mine")
    with pytest.raises(PermanentError, match="already"):
        sample.expand("rx7900xtx", tmp_path)
    assert listing(tmp_path) == {"sys/mine": "mine\n"}


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(PermanentError, match="expected to write the sample"):
        sample.expand("rx7900xtx", tmp_path / "file/below")
