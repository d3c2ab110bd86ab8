"""AMD GPUs that no container can have: never offered, and named with what holds them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdi.errors import PermanentError
from cdi.node import sample, topology
from tests.captures import write

FIRST, SECOND = "0000:03:00.0", "0000:43:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two RX 7900 XTX."""
    sample.expand("rx7900xtx", tmp_path / "root")
    return tmp_path / "root"


def device(root: Path, pci: str) -> Path:
    return (root / "sys/bus/pci/devices" / pci).resolve()


def rebind(root: Path, pci: str, driver: str) -> None:
    """Take a GPU from amdgpu, with all that amdgpu gives it, as the kernel does."""
    folder = device(root, pci)
    (folder / "driver").unlink()
    (root / "sys/bus/pci/drivers/amdgpu" / pci).unlink()
    shutil.rmtree(folder / "drm")
    node = {FIRST: 1, SECOND: 2}[pci]
    shutil.rmtree(root / f"sys/class/kfd/kfd/topology/nodes/{node}")
    if driver:
        other = root / "sys/bus/pci/drivers" / driver
        other.mkdir(exist_ok=True)
        (folder / "driver").symlink_to(other)


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        ("vfio-pci", "is bound to vfio-pci, so that it is a virtual machine's"),
        ("", "has no driver"),
        ("radeon", "is bound to the driver radeon"),
        ("pci-stub", "is bound to the driver pci-stub"),
    ],
)
def test_gpu_of_another_driver(root: Path, driver: str, found: str) -> None:
    rebind(root, FIRST, driver)
    node = topology.read_node(root)
    assert [gpu.pci for gpu in node.gpus] == [SECOND]
    assert node.warnings == ()
    (unusable,) = node.unusable
    assert unusable.pci == FIRST
    assert str(unusable).startswith(f"GPU {FIRST}: AMD Radeon RX 7900 XTX {found}")
    assert "amdgpu" in unusable.reason
    assert str(unusable).isprintable()


def test_if_all_are_held_by_others_the_error_names_them(root: Path) -> None:
    for pci in (FIRST, SECOND):
        rebind(root, pci, "vfio-pci")
    with pytest.raises(PermanentError, match="drives no PCI device") as error:
        topology.read_node(root)
    for pci in (FIRST, SECOND):
        assert f"GPU {pci}: AMD Radeon RX 7900 XTX is bound to vfio-pci" in error.value.message
    # Where the driver is not even loaded, too.
    shutil.rmtree(root / "sys/bus/pci/drivers/amdgpu")
    shutil.rmtree(root / "sys/module/amdgpu")
    with pytest.raises(PermanentError, match=rf"amdgpu driver.*{FIRST}.*{SECOND}"):
        topology.read_node(root)


def test_gpu_without_render_node(root: Path) -> None:
    shutil.rmtree(device(root, FIRST) / "drm/renderD128")
    node = topology.read_node(root)
    assert [gpu.pci for gpu in node.gpus] == [SECOND]
    assert node.warnings == ()
    (unusable,) = node.unusable
    assert "AMD Radeon RX 7900 XTX has no render node" in str(unusable)
    shutil.rmtree(device(root, SECOND) / "drm")
    with pytest.raises(PermanentError, match=rf"{FIRST}.*no render node.*{SECOND}.*no render node"):
        topology.read_node(root)


@pytest.mark.parametrize("driver", ["amdgpu", "gim"])
def test_sriov_physical_function(root: Path, driver: str) -> None:
    write(device(root, FIRST) / "sriov_numvfs", "4")
    if driver == "amdgpu":
        shutil.rmtree(device(root, FIRST) / "drm")
    else:
        rebind(root, FIRST, driver)
    (unusable,) = topology.read_node(root).unusable
    assert "is an SR-IOV physical function, and its 4 virtual functions have the GPU" in str(
        unusable
    )


@pytest.mark.parametrize("functions", ["0", "4"])
def test_physical_function_with_a_render_node_is_a_gpu(root: Path, functions: str) -> None:
    write(device(root, FIRST) / "sriov_numvfs", functions)
    node = topology.read_node(root)
    assert (len(node.gpus), node.unusable) == (2, ())


def test_what_is_no_gpu_of_amd_is_not_named(root: Path) -> None:
    # The HDMI audio of the same card, and a GPU of another vendor.
    for pci, vendor, kind in (
        ("0000:03:00.1", "0x1002", "0x040300"),
        ("0000:04:00.0", "0x10de", "0x030000"),
    ):
        folder = root / "sys/bus/pci/devices" / pci
        write(folder / "vendor", vendor)
        write(folder / "class", kind)
    assert topology.read_node(root).unusable == ()


def test_a_processing_accelerator_is_named(root: Path) -> None:
    folder = root / "sys/bus/pci/devices/0000:05:00.0"
    for name, content in (("vendor", "0x1002"), ("class", "0x120000"), ("device", "0x74a1")):
        write(folder / name, content)
    (unusable,) = topology.read_node(root).unusable
    assert str(unusable).startswith("GPU 0000:05:00.0: AMD Instinct MI300X has no driver")


@pytest.mark.parametrize("name", ["vendor", "class", "device", "revision", "sriov_numvfs"])
def test_files_of_a_foreign_gpu_that_cannot_be_read(root: Path, name: str) -> None:
    rebind(root, FIRST, "vfio-pci")
    path = device(root, FIRST) / name
    path.unlink(missing_ok=True)
    path.symlink_to(name)
    assert [gpu.pci for gpu in topology.read_node(root).gpus] == [SECOND]


def test_wsl_says_what_works_there(tmp_path: Path) -> None:
    write(tmp_path / "dev/dxg", "")
    (tmp_path / "sys/bus").mkdir(parents=True)
    with pytest.raises(PermanentError) as error:
        topology.read_node(tmp_path)
    line = str(error.value)
    for part in ("WSL2", "/dev/dxg", "librocdxg", "no GPUs, partitions or shares", "/usr/lib/wsl"):
        assert part in line
    assert "\n" not in line


def test_dxg_beside_kfd_is_no_wsl(root: Path) -> None:
    write(root / "dev/dxg", "")
    assert len(topology.read_node(root).gpus) == 2
