"""What is missing costs exactly what it is needed for: one property at a time, and what is lost.

Everything else of the node has to be as before, to the last field.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cdi.errors import PermanentError
from cdi.node import sample, topology
from cdi.node.gpu import Gpu, Node
from cdi.plan import planner
from cdi.plan.amount import ALL, Amount
from cdi.plan.planner import Want
from tests.captures import change, write

MI300X = "0000:05:00.0"  # KFD node 11 of the sample: an MI300X that is not partitioned
CPX = "0000:27:00.0"  # KFD nodes 3 to 10
RADEON = "0000:83:00.0"  # KFD node 2: an RX 9070 XT, which has no product_name
APU = "0000:c4:00.0"  # KFD node 12
NODES = {MI300X: 11, RADEON: 2, APU: 12}

WHOLE, MEMORY, CUS = "whole", "a part of the memory", "a part of the CUs"
ALL_SHARES = frozenset({WHOLE, MEMORY, CUS})


@dataclass(frozen=True)
class Loss:
    """What is lost of a GPU: other values of its fields, and the shares that can be made of it."""

    gpu: dict[str, object] = field(default_factory=dict)
    partition: dict[str, object] = field(default_factory=dict)
    shares: frozenset[str] = ALL_SHARES


NOTHING = Loss()
NO_ATOM = frozenset({WHOLE, MEMORY})
NO_PARTS = frozenset({WHOLE})

MISSING, EMPTY, GARBAGE, UNREADABLE = "missing", "empty", "garbage", "unreadable"
EVERY = (MISSING, EMPTY, GARBAGE, UNREADABLE)
BAD = (EMPTY, GARBAGE, UNREADABLE)

FILES: list[tuple[str, str, tuple[str, ...], Loss]] = [
    # The GPU, a file of its PCI device, what becomes of it, and what is lost.
    (MI300X, "device", EVERY, Loss({"device_id": 0})),
    (RADEON, "device", EVERY, Loss({"device_id": 0, "product": "AMD GPU"})),
    (MI300X, "revision", EVERY, NOTHING),
    (RADEON, "revision", EVERY, Loss({"revision": 0, "product": "AMD GPU 7550"})),
    (MI300X, "product_name", (MISSING, EMPTY, UNREADABLE), NOTHING),
    (MI300X, "product_name", (GARBAGE,), Loss({"product": "- /+"})),
    (MI300X, "unique_id", EVERY, NOTHING),
    (MI300X, "numa_node", EVERY, Loss({"numa_node": None})),
    (MI300X, "current_compute_partition", (MISSING,), Loss({"compute_mode": ""})),
    (MI300X, "current_compute_partition", BAD, Loss({"compute_mode": "unknown"})),
    (MI300X, "available_compute_partition", EVERY, Loss({"compute_modes": ()})),
    (MI300X, "current_memory_partition", EVERY, Loss({"memory_mode": ""})),
    (MI300X, "available_memory_partition", EVERY, Loss({"memory_modes": ()})),
    # An MI300A has the same architecture, and no VRAM.
    (MI300X, "mem_info_vram_total", EVERY, Loss(partition={"memory_kind": "shared"})),
    (RADEON, "mem_info_vram_total", EVERY, NOTHING),
    (APU, "mem_info_vram_total", EVERY, NOTHING),
    (MI300X, "mem_info_gtt_total", EVERY, NOTHING),
    (RADEON, "mem_info_gtt_total", EVERY, NOTHING),
    (APU, "mem_info_gtt_total", EVERY, NOTHING),
    (MI300X, "class", EVERY, NOTHING),
    (MI300X, "vendor", EVERY, NOTHING),
]

KFD_FILES: list[tuple[str, str, tuple[str, ...], Loss]] = [
    # The same for files of its KFD node.
    (MI300X, "mem_banks/0/properties", EVERY, NOTHING),
    (RADEON, "mem_banks/0/properties", EVERY, NOTHING),
    (APU, "mem_banks/0/properties", EVERY, Loss(partition={"memory_bytes": 0}, shares=NO_PARTS)),
    # One to each of the other's eight nodes, and before them one of PCIe.
    (MI300X, "io_links/0/properties", EVERY, NOTHING),
    (MI300X, "io_links/1/properties", EVERY, NOTHING),
]

NUMBERS = (None, "", "x7", "-3", str(1 << 70))
"""Instead of a property's value; None takes the line away."""

PROPERTIES: list[tuple[str, str, tuple[str | None, ...], Loss]] = [
    # The same for lines of its KFD node.
    *(
        (MI300X, name, (*NUMBERS, "0"), Loss(partition={"cus": 0}, shares=NO_PARTS))
        for name in ("simd_count", "simd_per_cu")
    ),
    (MI300X, "simd_count", ("1217",), Loss(partition={"cus": 0}, shares=NO_PARTS)),
    (MI300X, "simd_count", (str(4 * 4097),), Loss(partition={"cus": 0}, shares=NO_PARTS)),
    (MI300X, "cpu_cores_count", NUMBERS, NOTHING),
    (
        MI300X,
        "gfx_target_version",
        (*NUMBERS, "0"),
        Loss(partition={"gfx_target_version": 0}, shares=NO_ATOM),
    ),
    (MI300X, "num_xcc", (*NUMBERS, "0", "256"), Loss(partition={"xccs": 0}, shares=NO_ATOM)),
    # Kernels that do not tell it drive no RDNA with several; one that tells nonsense might.
    (RADEON, "num_xcc", (None,), NOTHING),
    (RADEON, "num_xcc", ("", "x7"), Loss(partition={"xccs": 0}, shares=NO_ATOM)),
    # Atoms are known of WGPs and of XCCs, and of nothing that has both.
    (RADEON, "num_xcc", ("4",), Loss(partition={"xccs": 0}, shares=NO_ATOM)),
    (RADEON, "gfx_target_version", (None,), Loss(
        partition={"gfx_target_version": 0, "xccs": 1}, shares=NO_ATOM)),
    (MI300X, "num_cp_queues", NUMBERS, Loss(partition={"queues": 0})),
    (MI300X, "hive_id", NUMBERS, Loss({"hive_id": 0, "xgmi_peers": ()})),
    (MI300X, "unique_id", (None,), NOTHING),
    # What ROCr makes of it is not known, so it is asked for by index.
    (MI300X, "unique_id", NUMBERS[1:], Loss({"unique_id": 0})),
    (MI300X, "location_id", NUMBERS, NOTHING),
    (APU, "location_id", NUMBERS, NOTHING),  # without a unique id: by its render node
    (MI300X, "domain", NUMBERS, NOTHING),
    (MI300X, "drm_render_minor", NUMBERS, NOTHING),
    (MI300X, "mem_banks_count", NUMBERS, NOTHING),
    (MI300X, "array_count", NUMBERS, NOTHING),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole") / "root"
    sample.expand("mixed", root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "root", symlinks=True))


@pytest.fixture
def kept(whole: Path) -> Iterator[Callable[[Path], Path]]:
    """Take a file of the machine, which is as it was afterwards."""
    files: list[tuple[Path, bytes]] = []

    def keep(path: Path) -> Path:
        files.append((path, path.read_bytes()))
        return path

    yield keep
    for path, content in files:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(content)


def damage(path: Path, how: str) -> None:
    if how == EMPTY:
        path.write_bytes(b"")
    elif how == GARBAGE:
        path.write_bytes(b"-,;:/+\n")
    else:
        path.unlink()
    if how == UNREADABLE:  # the one way that holds for root too
        path.symlink_to(path.name)


def possible(gpu: Gpu) -> frozenset[str]:
    """The shares that the planner makes of a GPU's first partition."""
    found = set()
    for name, cus, memory in (
        (WHOLE, ALL, ALL),
        (MEMORY, ALL, Amount(1 << 30, percent=False)),
        (CUS, Amount(25, percent=True), ALL),
    ):
        try:
            planner.plan("share-a", [Want(gpu, gpu.partitions[0], cus, memory)], ())
            found.add(name)
        except PermanentError as error:
            if "whole and alone" not in error.message:
                raise
    return frozenset(found)


def check(before: Node, after: Node, pci: str, loss: Loss) -> None:
    """The node is as before but for the loss, which is told wherever it costs a share."""
    expected = [
        replace(
            gpu,
            partitions=tuple(replace(part, **loss.partition) for part in gpu.partitions),  # type: ignore[arg-type]
            **loss.gpu,  # type: ignore[arg-type]
        )
        if gpu.pci == pci
        else gpu
        for gpu in before.gpus
    ]
    assert list(after.gpus) == expected
    assert after.unusable == before.unusable
    (gpu,) = (gpu for gpu in after.gpus if gpu.pci == pci)
    assert possible(gpu) == loss.shares
    if loss.shares != ALL_SHARES:
        assert any(pci in line and "no share of" in line for line in after.warnings)


@pytest.mark.parametrize(
    ("pci", "name", "how", "loss"),
    [
        pytest.param(pci, f"sys/bus/pci/devices/{pci}/{name}", how, loss, id=f"{pci}/{name}-{how}")
        for pci, name, ways, loss in FILES
        for how in ways
    ]
    + [
        pytest.param(
            pci,
            f"sys/class/kfd/kfd/topology/nodes/{NODES[pci]}/{name}",
            how,
            loss,
            id=f"{NODES[pci]}/{name}-{how}",
        )
        for pci, name, ways, loss in KFD_FILES
        for how in ways
    ],
)
def test_file(
    whole: Path, kept: Callable[[Path], Path], pci: str, name: str, how: str, loss: Loss
) -> None:
    before = topology.read_node(whole)
    damage(kept(whole / name), how)
    check(before, topology.read_node(whole), pci, loss)


@pytest.mark.parametrize(
    ("pci", "name", "value", "loss"),
    [
        pytest.param(pci, name, value, loss, id=f"{NODES[pci]}-{name}-{value}")
        for pci, name, values, loss in PROPERTIES
        for value in values
    ],
)
def test_property(
    whole: Path, kept: Callable[[Path], Path], pci: str, name: str, value: str | None, loss: Loss
) -> None:
    before = topology.read_node(whole)
    change(
        kept(whole / f"sys/class/kfd/kfd/topology/nodes/{NODES[pci]}/properties"), **{name: value}
    )
    check(before, topology.read_node(whole), pci, loss)


def test_a_whole_gpu_is_offered_of_which_next_to_nothing_is_known(root: Path) -> None:
    # A kernel before 5.13 tells no gfx_target_version; this one tells no sizes either.
    node = root / "sys/class/kfd/kfd/topology/nodes/12"
    change(
        node / "properties",
        gfx_target_version=None,
        simd_count=None,
        num_xcc=None,
        hive_id=None,
        unique_id=None,
        num_cp_queues=None,
        domain=None,
    )
    shutil.rmtree(node / "mem_banks")
    for name in ("device", "revision", "mem_info_vram_total", "mem_info_gtt_total", "numa_node"):
        (root / f"sys/bus/pci/devices/{APU}/{name}").unlink()
    gpu = topology.read_node(root).gpus[3]
    assert (gpu.pci, gpu.partitions[0].render_minor, gpu.partitions[0].card_minor) == (APU, 152, 22)
    assert (gpu.product, gpu.uuid, gpu.partitions[0].gfx) == ("AMD GPU", "", "")
    assert possible(gpu) == {WHOLE}


@pytest.mark.parametrize("name", ["location_id", "drm_render_minor"])
@pytest.mark.parametrize("value", [None, "x7"])
def test_partition_that_is_not_known_to_be_which_is_lost_alone(
    root: Path, name: str, value: str | None
) -> None:
    before = topology.read_node(root)
    change(root / "sys/class/kfd/kfd/topology/nodes/6/properties", **{name: value})
    node = topology.read_node(root)
    expected = [
        replace(gpu, partitions=gpu.partitions[:3] + gpu.partitions[4:]) if gpu.pci == CPX else gpu
        for gpu in before.gpus
    ]
    assert list(node.gpus) == expected
    assert any(name in line for line in node.warnings)


@pytest.mark.parametrize("name", ["simd_count", "gfx_target_version", "num_xcc"])
def test_partition_of_which_a_part_is_known_is_had_whole(root: Path, name: str) -> None:
    change(root / "sys/class/kfd/kfd/topology/nodes/6/properties", **{name: None})
    node = topology.read_node(root)
    parts = [part.index for part in node.gpus[1].partitions if not planner.divisible(part)]
    assert parts == [3]
    # The others are split all the same.
    names = {share.name for share in planner.split(node, 2, ("index",), ())}
    assert {"0-1of2", "1:2-1of2", "1:4-2of2"} < names
    assert "1:3-1of2" not in names


def test_card_nodes_that_are_not_one(root: Path) -> None:
    before = topology.read_node(root)
    folder = root / f"sys/bus/pci/devices/{MI300X}/drm"
    (folder / "card77").mkdir()
    (part,) = topology.read_node(root).gpus[0].partitions
    assert part == replace(before.gpus[0].partitions[0], card_minor=None)
    shutil.rmtree(folder / "card77")
    shutil.rmtree(folder / "card1")
    (part,) = topology.read_node(root).gpus[0].partitions
    assert part == replace(before.gpus[0].partitions[0], card_minor=None)


def test_two_shares_of_a_gpu_whose_cus_are_not_known(root: Path) -> None:
    change(root / "sys/class/kfd/kfd/topology/nodes/11/properties", simd_count=None)
    shutil.rmtree(root / "sys/class/kfd/kfd/topology/nodes/11/mem_banks")
    (root / f"sys/bus/pci/devices/{MI300X}/mem_info_vram_total").unlink()
    gpu = topology.read_node(root).gpus[0]
    want = Want(gpu, gpu.partitions[0])
    first = planner.plan("share-a", [want], ())
    assert (first.slices[0].cus, first.slices[0].memory) == (0, 0)
    with pytest.raises(PermanentError, match="a share lives there"):
        planner.plan("share-b", [want], [first])


def test_xgmi_peers_are_those_whose_links_can_be_read(root: Path) -> None:
    before = topology.read_node(root)
    links = root / "sys/class/kfd/kfd/topology/nodes/11/io_links"
    for number in range(1, 9):
        write(links / f"{number}/properties", "type eleven")
    node = topology.read_node(root)
    assert list(node.gpus) == [replace(before.gpus[0], xgmi_peers=()), *before.gpus[1:]]
    assert len(node.warnings) == 8
    shutil.rmtree(links)
    assert topology.read_node(root).gpus == node.gpus


def test_generation_id_is_not_needed(whole: Path, kept: Callable[[Path], Path]) -> None:
    before = topology.read_node(whole)
    for how in EVERY:
        path = whole / "sys/class/kfd/kfd/topology/generation_id"
        damage(kept(path) if how == MISSING else write(path, "1") or path, how)
        assert topology.read_node(whole) == before
