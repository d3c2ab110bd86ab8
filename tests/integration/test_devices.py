"""Containers that real runtimes start with the devices that `amd-cdi` wrote.

The node is the sample `mixed`: GPU 0 is an MI300X (card1, renderD129), GPU 1 one in CPX (card9 to
card16), GPU 2 a Radeon RX 9070 XT (card20, renderD150), GPU 3 an APU (card22, renderD152); card0
and renderD128 are another vendor's.
"""

from collections.abc import Collection
from operator import attrgetter

import pytest

from tests.integration import probe
from tests.integration.machine import Machine
from tests.integration.product import hook_log
from tests.integration.runtimes import BARE, ENGINES
from tests.integration.sandbox import node_number

# Of those without an engine one is enough: they differ in nothing that matters here.
pytestmark = pytest.mark.parametrize(
    "machine", [*ENGINES, BARE[0]], ids=attrgetter("name"), indirect=True
)

EVERY_RENDER_NODE = tuple(f"226:{minor}" for minor in (128, 129, *range(137, 145), 150, 152))


def granted(sight: probe.Sight) -> set[str]:
    """The GPU nodes of a container, each checked to be the right device, and to open."""
    for name, seen in sight.gpu_nodes().items():
        assert (seen.major, seen.minor) == node_number(name), name
        assert seen.answer in probe.GRANTED, name
    return set(sight.gpu_nodes())


def all_but(*minors: int) -> tuple[str, ...]:
    return tuple(number for number in EVERY_RENDER_NODE if int(number.split(":")[1]) not in minors)


@pytest.fixture(scope="session")
def without(node: Machine) -> probe.Sight:
    """What a container without a device sees."""
    return node.look(strangers=EVERY_RENDER_NODE)


def test_a_container_without_a_device_has_no_gpu(without: probe.Sight) -> None:
    assert granted(without) == set()
    assert set(without.strangers.values()) == {probe.REFUSED}


@pytest.mark.parametrize(
    ("devices", "cards", "renders"),
    [
        pytest.param(["0"], [1], [129], id="a whole GPU"),
        pytest.param(["0", "2"], [1, 20], [129, 150], id="two whole GPUs"),
        pytest.param(["1:3"], [12], [140], id="a partition"),
    ],
)
def test_a_gpu_comes_with_its_nodes_alone(
    node: Machine,
    without: probe.Sight,
    devices: Collection[str],
    cards: Collection[int],
    renders: Collection[int],
) -> None:
    sight = node.look(*devices, strangers=all_but(*renders))
    nodes = {"kfd", *(f"dri/card{n}" for n in cards), *(f"dri/renderD{n}" for n in renders)}
    assert granted(sight) == nodes
    assert set(sight.strangers.values()) == {probe.REFUSED}
    assert sight.environment.keys() == without.environment.keys()
    assert sight.mounts.keys() == without.mounts.keys()


@pytest.mark.parametrize(
    ("device", "card", "render", "limits"),
    [
        pytest.param(
            # A quarter of 304 CUs is 76, of which 72 are whole atoms of 8.
            *("share-alice", 1, 129),
            {
                "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
                "HSA_CU_MASK": "0:0-71",
                "HIP_DEVICE_MEMORY_LIMIT_0": "51539607552",
            },
            id="a share",
        ),
        pytest.param(
            # Half of 64 CUs, and of the 17095983104 bytes that its memory bank has.
            *("2-2of2", 20, 150),
            {
                "ROCR_VISIBLE_DEVICES": "GPU-3c7ae05d91f4b268",
                "HSA_CU_MASK": "0:32-63",
                "HIP_DEVICE_MEMORY_LIMIT_0": "8547991552",
            },
            id="an equal share",
        ),
        pytest.param(
            # Half of the 38 CUs of an XCC, and of an eighth of 206141652992 bytes.
            *("1:3-1of2", 12, 140),
            {
                "ROCR_VISIBLE_DEVICES": "0",
                "HSA_CU_MASK": "0:0-18",
                "HIP_DEVICE_MEMORY_LIMIT_0": "12883853312",
            },
            id="an equal share of a partition",
        ),
    ],
)
def test_a_share_comes_with_its_limits(
    node: Machine,
    without: probe.Sight,
    device: str,
    card: int,
    render: int,
    limits: dict[str, str],
) -> None:
    sight = node.look(device, strangers=all_but(render))
    assert granted(sight) == {"kfd", f"dri/card{card}", f"dri/renderD{render}"}
    assert set(sight.strangers.values()) == {probe.REFUSED}
    added = sight.environment.items() - without.environment.items()
    assert {name: value for name, value in added if name != "HOSTNAME"} == {
        "HIP_VISIBLE_DEVICES": "0",
        "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
        "HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage",
        **limits,
    }
    mounts = {path: sight.mounts[path] for path in sight.mounts.keys() - without.mounts.keys()}
    assert {path: "ro" in options for path, options in mounts.items()} == {
        "/usr/local/vgpu/libamvgpu.so": True,
        "/usr/local/vgpu/share.conf": True,
        "/usr/local/vgpu/usage": False,
    }


def test_the_library_of_a_share_is_loaded_in_its_programs(
    node: Machine, without: probe.Sight
) -> None:
    sight = node.look("share-alice")
    assert sight.files - without.files == {"/usr/local/vgpu/libamvgpu.so"}
    assert hook_log(node.sandbox)[-1].endswith(
        "share share-alice: memory held by the library, glibc 2.35 or later"
    )
