"""Machines with something wrong: no GPU but its own loses anything, and there is always a message.

What exactly is lost with each property: test_topology_losses.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdi import cumask
from cdi.errors import PermanentError
from cdi.node import kfd, sample, topology
from cdi.node.gpu import Gpu, Node
from tests.captures import change, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VICTIM = "0000:05:00.0"  # KFD node 11 of the sample: an MI300X that is not partitioned
PCI = f"sys/bus/pci/devices/{VICTIM}"
KFD = "sys/class/kfd/kfd/topology/nodes"

NODE = f"{KFD}/11/properties"
"""The one file that the GPU cannot be had without: nothing else ties it to what HIP sees."""

FILES = (
    NODE,
    f"{PCI}/device",
    f"{PCI}/unique_id",
    f"{PCI}/mem_info_vram_total",
    f"{PCI}/mem_info_gtt_total",
    f"{PCI}/current_compute_partition",
    f"{KFD}/11/mem_banks/0/properties",
    f"{PCI}/revision",
    f"{PCI}/numa_node",
    f"{PCI}/product_name",
    f"{PCI}/available_compute_partition",
    f"{PCI}/current_memory_partition",
    f"{PCI}/available_memory_partition",
    f"{KFD}/11/io_links/1/properties",
)
"""All that is read of the GPU."""


def overwrite(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    """The one way to make a file unreadable for root too."""
    path.unlink()
    path.symlink_to(path.name)


DAMAGES = {
    "binary": overwrite(bytes(range(128, 256))),
    "NULs": overwrite(b"\0" * 64),
    "punctuation": overwrite(b"-,;:/+\n"),
    "huge": overwrite(b"9" * (1 << 20)),
    "FIFO": fifo,
    "folder": folder,
    "unreadable": loop,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "root"
    sample.expand("mixed", root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "root", symlinks=True))


@pytest.fixture
def damaged(whole: Path) -> Iterator[Callable[[str, Callable[[Path], None]], Node]]:
    """Read the machine with one file damaged, which is whole again afterwards."""
    kept: list[tuple[Path, bytes]] = []

    def read(relative: str, damage: Callable[[Path], None]) -> Node:
        path = whole / relative
        kept.append((path, path.read_bytes()))
        damage(path)
        return topology.read_node(whole)

    yield read
    for path, content in kept:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
        path.write_bytes(content)


def without_links(gpu: Gpu) -> tuple[object, ...]:
    """What another GPU's fault must not change: all but the links to it and the position."""
    return (gpu.pci, gpu.uuid, gpu.product, gpu.memory_bytes, gpu.compute_mode, gpu.partitions)


def others(node: Node) -> list[tuple[object, ...]]:
    return [without_links(gpu) for gpu in node.gpus if gpu.pci != VICTIM]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("relative", FILES)
def test_bad_file_is_named_and_costs_no_other_gpu(
    whole: Path,
    damaged: Callable[[str, Callable[[Path], None]], Node],
    relative: str,
    damage: Callable[[Path], None],
) -> None:
    before = topology.read_node(whole)
    node = damaged(relative, damage)
    assert (VICTIM in {gpu.pci for gpu in node.gpus}) == (relative != NODE)
    assert others(node) == others(before)
    name = relative.removeprefix(PCI)
    assert any(name in warning for warning in node.warnings) or "product" in name
    assert all("\0" not in warning and "\n" not in warning for warning in node.warnings)
    assert all(gpu.product.isprintable() for gpu in node.gpus)


def test_gpu_whose_node_cannot_be_read_is_named(
    damaged: Callable[[str, Callable[[Path], None]], Node],
) -> None:
    # As in a container without the device cgroup, where it is empty.
    node = damaged(NODE, overwrite(b""))
    assert any("device cgroup" in warning for warning in node.warnings)
    assert any(VICTIM in warning for warning in node.warnings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("location_id", 0x0600),
        ("domain", 1),
        ("drm_render_minor", 128),
        ("drm_render_minor", 137),
        ("drm_render_minor", 4000),
    ],
)
def test_property_that_contradicts_others_costs_its_gpu(root: Path, name: str, value: int) -> None:
    before = topology.read_node(root)
    changes = {name: value}
    if name in {"location_id", "domain"}:
        # The right id would still lead home; it is not what is tried here.
        changes["unique_id"] = 1
    change(root / NODE, **changes)
    node = topology.read_node(root)
    assert VICTIM not in {gpu.pci for gpu in node.gpus}
    assert others(node) == others(before)
    assert any("KFD node 11" in warning for warning in node.warnings)


def test_render_node_that_two_claim_is_nobodys(root: Path) -> None:
    change(root / KFD / "4/properties", drm_render_minor=139)
    gpu = next(gpu for gpu in topology.read_node(root).gpus if gpu.pci == "0000:27:00.0")
    assert [part.index for part in gpu.partitions] == [0, 3, 4, 5, 6, 7]


def test_bad_platform_device_costs_its_partition(root: Path) -> None:
    (root / "sys/devices/platform/amdgpu_xcp_2/drm/renderD999").mkdir()
    node = topology.read_node(root)
    gpu = next(gpu for gpu in node.gpus if gpu.pci == "0000:27:00.0")
    assert [part.index for part in gpu.partitions] == [0, 1, 2, 4, 5, 6, 7]
    assert any("amdgpu_xcp_2/drm" in warning for warning in node.warnings)


def test_product_name_has_no_separators_of_lists(root: Path) -> None:
    write(root / PCI / "product_name", "  AMD, Instinct:\tMI300X;\x1b[31m  OAM ")
    gpu = topology.read_node(root).gpus[0]
    assert gpu.product == "AMD Instinct MI300X [31m OAM"


# No machine at all


def test_sysroot_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"root of a system.*nowhere.*--sysroot"):
        topology.read_node(tmp_path / "nowhere")


def test_sysroot_that_is_a_file(tmp_path: Path) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(PermanentError, match=r"root of a system.*file"):
        topology.read_node(tmp_path / "file")


@pytest.mark.parametrize("name", ["x" * 300, "loop"])
def test_sysroot_that_cannot_be_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PermanentError, match="root of a system"):
        topology.read_node(tmp_path / name)


def test_sysroot_without_sysfs(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"sysfs.*/sys"):
        topology.read_node(tmp_path)


def test_no_driver(root: Path) -> None:
    shutil.rmtree(root / "sys/bus/pci/drivers/amdgpu")
    shutil.rmtree(root / "sys/module/amdgpu")
    with pytest.raises(PermanentError, match=r"amdgpu driver.*modprobe amdgpu"):
        topology.read_node(root)


def test_driver_without_gpu(root: Path) -> None:
    driver = root / "sys/bus/pci/drivers/amdgpu"
    for link in driver.glob("0000:*"):
        link.unlink()
    write(driver / "bind", "")
    with pytest.raises(PermanentError, match=r"drives no PCI device.*lspci"):
        topology.read_node(root)


def test_no_kfd(root: Path) -> None:
    (root / "sys/class/kfd/kfd").unlink()
    with pytest.raises(PermanentError, match=r"KFD topology.*CONFIG_HSA_AMD"):
        topology.read_node(root)


def test_no_gpu_in_kfd(root: Path) -> None:
    for number in range(2, 13):
        shutil.rmtree(root / KFD / str(number))
    with pytest.raises(PermanentError, match="GPU that can be used, found none") as error:
        topology.read_node(root)
    assert VICTIM in error.value.message


@pytest.mark.parametrize("relative", ["sys/bus/pci/drivers/amdgpu", KFD])
def test_folder_that_is_none(root: Path, relative: str) -> None:
    path = root / relative
    shutil.rmtree(path)
    write(path, "")
    with pytest.raises(PermanentError, match="expected to list"):
        topology.read_node(root)


# Anything at all

HOSTILE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=60).map(lambda text: text.encode(errors="replace")),
    st.integers(-(1 << 70), 1 << 70).map(lambda number: str(number).encode()),
    st.integers(0, 1 << 70).map(lambda number: hex(number).encode()),
    st.lists(st.sampled_from(["SPX", "CPX", "NPS1", "", "-1", "0", "1_0", "٣"])).map(
        lambda words: ", ".join(words).encode()
    ),
)

PROPERTY = st.sampled_from(
    [
        "cpu_cores_count",
        "simd_count",
        "simd_per_cu",
        "num_xcc",
        "gfx_target_version",
        "location_id",
        "domain",
        "drm_render_minor",
        "unique_id",
        "hive_id",
        "num_cp_queues",
        "heap_type",
        "size_in_bytes",
        "type",
        "node_to",
        "other",
    ]
)

LINES = st.dictionaries(
    PROPERTY,
    st.one_of(st.integers(-2, 12), st.integers(0, 1 << 66), st.text(max_size=8)),
    max_size=12,
).map(lambda lines: "".join(f"{k} {v}\n" for k, v in lines.items()).encode(errors="replace"))


def check(node: Node, root: Path) -> None:
    """What holds for every node, however odd the files are."""
    seen = set()
    for gpu in node.gpus:
        own = {path.name for path in (root / "sys/bus/pci/devices" / gpu.pci / "drm").iterdir()}
        assert 0 <= gpu.unique_id < 1 << 64
        assert 0 <= gpu.memory_bytes <= 16 * kfd.MAX_MEMORY
        assert gpu.product
        assert not set(gpu.product) & set(",:;\n")
        indexes = [part.index for part in gpu.partitions]
        assert indexes == sorted(set(indexes))
        for part in gpu.partitions:
            assert 0 <= part.cus <= cumask.MAX_CUS
            assert part.atom == 0 or (part.gfx and part.xccs)
            assert part.render_minor not in seen, "two would be given the same node"
            seen.add(part.render_minor)
            xcps = root.glob(f"sys/devices/platform/*/drm/renderD{part.render_minor}")
            assert f"renderD{part.render_minor}" in own or list(xcps)
    for warning in node.warnings:
        assert warning.isprintable()


FUZZED = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@FUZZED
@given(relative=st.sampled_from(FILES), content=st.one_of(HOSTILE, LINES))
def test_any_content_of_a_file_leaves_the_other_gpus_alone(
    whole: Path, relative: str, content: bytes
) -> None:
    path = whole / relative
    before = path.read_bytes()
    expected = topology.read_node(whole)
    path.write_bytes(content)
    try:
        node = topology.read_node(whole)
    finally:
        path.write_bytes(before)
    check(node, whole)
    # A node may claim another's render node, and both lose it; nothing else may change.
    claims = {gpu.pci for gpu in node.gpus} >= {gpu.pci for gpu in expected.gpus} - {VICTIM}
    assert claims or b"drm_render_minor" in content


@FUZZED
@given(
    contents=st.dictionaries(
        st.sampled_from([*FILES, *(f"{KFD}/{number}/properties" for number in range(13))]),
        st.one_of(HOSTILE, LINES),
        min_size=1,
        max_size=16,
    )
)
def test_any_contents_give_a_node_or_a_message(whole: Path, contents: dict[str, bytes]) -> None:
    kept = {relative: (whole / relative).read_bytes() for relative in contents}
    for relative, content in contents.items():
        (whole / relative).write_bytes(content)
    node, refusal = Node(gpus=()), None
    try:
        node = topology.read_node(whole)
    except PermanentError as error:
        refusal = error
    finally:
        for relative, content in kept.items():
            (whole / relative).write_bytes(content)
    check(node, whole)
    assert refusal is None or (refusal.hint and refusal.message.isprintable())
