"""Captured machines, and samples of others than `mixed`, from `amd-cdi generate` to containers.

One engine is enough: what differs is what is read and written, not who starts it.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cdi.node import sample
from tests.captures import CPX, MI210, lay
from tests.integration import probe
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.product import amd_cdi, hook_log, install
from tests.integration.runtimes import ENGINES
from tests.integration.sandbox import node_number, sandbox

NODES = (
    "kfd",
    *(f"dri/card{minor}" for minor in range(64)),
    *(f"dri/renderD{minor}" for minor in range(128, 192)),
)
"""Those of a machine of 64 partitions, and so of every smaller one."""

TREES: dict[str, Callable[[Path], object]] = {
    "mi300-cpx-captured": lambda root: lay(
        CPX, root, current_compute_partition="CPX", mem_info_vram_total="206141652992"
    ),
    "mi210-captured": lambda root: lay(MI210, root, mem_info_vram_total="68702699520"),
    **{
        name: lambda root, name=name: sample.expand(name, root)  # type: ignore[misc]
        for name in ("strix-halo", "mi300a", "mixed")
    },
}


@pytest.fixture(scope="module")
def engine(scratch: Path, dynamic: Image, static: Image, library: Path) -> Iterator[Machine]:
    """Podman on a machine with the device nodes of 64 partitions."""
    runtime = ENGINES[0]
    folder = scratch / "nodes"
    folder.mkdir()
    with (
        sandbox(folder, runtime.cgroups, NODES) as made,
        runtime.opened(made, [dynamic, static]) as start,
    ):
        install(made, library)
        yield Machine(made, runtime, dynamic, static, start)


class On:
    """The machine with the sysfs of one tree, and a ledger and a spec of its own."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.root = machine.sandbox.folder / name
        self.variables = {
            "AMD_CDI_SYSROOT": str(self.root),
            "AMD_CDI_STATE_DIR": f"/var/lib/amd-cdi/{name}",
        }
        if not self.root.exists():
            self.root.mkdir()
            TREES[name](self.root)
        spec = machine.sandbox.path("/etc/cdi/amd.com-gpu.yaml")
        spec.unlink(missing_ok=True)

    def amd_cdi(self, *arguments: str) -> str:
        return amd_cdi(self.machine.sandbox, *arguments, **self.variables)


@pytest.fixture
def on(engine: Machine) -> Callable[[str], On]:
    return lambda name: On(engine, name)


def nodes_of(sight: probe.Sight) -> set[str]:
    """The GPU nodes of a container, each checked to be the right device, and to open."""
    for name, seen in sight.gpu_nodes().items():
        assert (seen.major, seen.minor) == node_number(name), name
        assert seen.answer in probe.GRANTED, name
    return set(sight.gpu_nodes())


@pytest.mark.parametrize(
    ("name", "devices", "cards", "renders"),
    [
        # The first node of KFD is at location 25344, 0000:63:00.0, the fourth by address.
        pytest.param("mi210-captured", ["3"], [0], [128], id="MI210"),
        pytest.param("mi210-captured", ["0000:e3:00.0", "3"], [4, 0], [132, 128], id="two MI210"),
        # Location 58630, 0xe506: partition 6 of the last GPU, the last that the capture has.
        pytest.param("mi300-cpx-captured", ["7:6"], [62], [190], id="partition"),
        pytest.param(
            "mi300-cpx-captured", ["1"], range(8, 16), range(136, 144), id="all partitions of a GPU"
        ),
        pytest.param("strix-halo", ["0"], [1], [128], id="Strix Halo"),
        pytest.param("strix-halo", ["all"], [1], [128], id="all of Strix Halo"),
        pytest.param("mi300a", ["2"], [17], [144], id="MI300A"),
    ],
)
def test_a_gpu_comes_with_its_nodes_alone(
    on: Callable[[str], On],
    name: str,
    devices: Sequence[str],
    cards: Sequence[int],
    renders: Sequence[int],
) -> None:
    node = on(name)
    node.amd_cdi("generate", "--device-name-strategy=index", "--device-name-strategy=pci")
    others = [f"226:{minor}" for minor in range(128, 192) if minor not in renders]
    sight = node.machine.look(*devices, strangers=others)
    expected = {"kfd", *(f"dri/card{n}" for n in cards), *(f"dri/renderD{n}" for n in renders)}
    assert nodes_of(sight) == expected
    assert set(sight.strangers.values()) == {probe.REFUSED}


def test_a_partition_that_the_capture_lacks_is_no_device(on: Callable[[str], On]) -> None:
    node = on("mi300-cpx-captured")
    node.amd_cdi("generate")
    outcome = node.machine.run("7:7")
    assert outcome.status != 0
    assert "amd.com/gpu=7:7" in outcome.stderr


@pytest.mark.parametrize(
    ("name", "request_", "limits"),
    [
        pytest.param(
            "mi210-captured",
            ["--gpu=3", "--cores=25", "--memory=16GiB"],
            {
                "ROCR_VISIBLE_DEVICES": "GPU-1901ead3a2ecd4a6",
                "HSA_CU_MASK": "0:0-25",
                "HIP_DEVICE_MEMORY_LIMIT_0": str(16 << 30),
            },
            id="MI210",
        ),
        pytest.param(
            "mi300-cpx-captured",
            ["--gpu=7:6", "--cores=50", "--memory=12GiB"],
            {
                "ROCR_VISIBLE_DEVICES": "0",
                "HSA_CU_MASK": "0:0-18",
                "HIP_DEVICE_MEMORY_LIMIT_0": str(12 << 30),
            },
            id="partition",
        ),
        pytest.param(
            # A quarter of 40 CUs is five WGPs; more memory than twice the carve-out.
            "strix-halo",
            ["--gpu=0", "--cores=25", "--memory=24GiB"],
            {
                "ROCR_VISIBLE_DEVICES": "0",
                "HSA_CU_MASK": "0:0-9",
                "HIP_DEVICE_MEMORY_LIMIT_0": str(24 << 30),
            },
            id="Strix Halo",
        ),
        pytest.param(
            # An RX 9070 XT and an APU: a half of each.
            "mixed",
            ["--gpu=2", "--gpu=3", "--cores=50", "--memory=4GiB"],
            {
                "ROCR_VISIBLE_DEVICES": "GPU-3c7ae05d91f4b268,1",
                "HSA_CU_MASK": "0:0-31;1:0-7",
                "HIP_DEVICE_MEMORY_LIMIT_0": str(4 << 30),
                "HIP_DEVICE_MEMORY_LIMIT_1": str(4 << 30),
            },
            id="an APU beside another",
        ),
    ],
)
def test_a_share_comes_with_its_limits(
    on: Callable[[str], On], name: str, request_: Sequence[str], limits: dict[str, str]
) -> None:
    node = on(name)
    node.amd_cdi("generate")
    node.amd_cdi("share", "create", "some", *request_)
    try:
        sight = node.machine.look("share-some")
    finally:
        node.amd_cdi("share", "remove", "some")
    assert {key: sight.environment[key] for key in limits} == limits
    assert hook_log(node.machine.sandbox)[-1].endswith("the library, glibc 2.35 or later")


def test_memory_of_the_host_s_own_is_never_held_by_the_kernel(on: Callable[[str], On]) -> None:
    node = on("strix-halo")
    node.amd_cdi("generate")
    node.amd_cdi("share", "create", "some", "--gpu=0", "--cores=25", "--memory=24GiB")
    try:
        node.machine.assert_refused(
            node.machine.run("share-some", image=node.machine.static),
            "expected '/bin/sh' as a dynamic program that loads LD_AUDIT",
        )
        # Where the kernel alone may hold shares there is none of it.
        node.amd_cdi("generate", "--require=dmem")
        outcome = node.machine.run("share-some")
        assert outcome.status != 0
        assert "amd.com/gpu=share-some" in outcome.stderr
    finally:
        node.amd_cdi("share", "remove", "some")


def test_a_gpu_of_an_old_kernel_is_had_whole(on: Callable[[str], On]) -> None:
    node = on("strix-halo")
    properties = node.root / "sys/devices/virtual/kfd/kfd/topology/nodes/1/properties"
    told = properties.read_text()
    try:
        kept = [line for line in told.splitlines() if not line.startswith("gfx_target_version")]
        properties.write_text("\n".join(kept) + "\n")
        node.amd_cdi("generate")
        assert nodes_of(node.machine.look("0")) == {"kfd", "dri/card1", "dri/renderD128"}
        # All of its CUs with a part of the memory need no atom to be known.
        node.amd_cdi("share", "create", "some", "--gpu=0", "--memory=8GiB")
        sight = node.machine.look("share-some")
        assert sight.environment["HSA_CU_MASK"] == "0:0-39"
        assert sight.environment["HIP_DEVICE_MEMORY_LIMIT_0"] == str(8 << 30)
    finally:
        properties.write_text(told)
        node.amd_cdi("share", "remove", "some")
