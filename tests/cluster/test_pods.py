"""Real pods on a real node: what their containers hold is what was booked for them.

The node is the sample `mixed`. Its first device is an MI300X (card1, renderD129) of 304 CUs and
196592 MiB, booked in atoms of 8; then come 8 partitions of another (card9 to card16, renderD137 to
renderD144) of 38 CUs, and a Radeon RX 9070 XT (card20, renderD150) of 64 CUs in pairs.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.integration import probe
from tests.integration.sandbox import node_number
from tests.plugin.scheduler import Ask

MI300X, FOURTH_PARTITION, RADEON = 0, 4, 9

MIB = 1 << 20

LIBRARY = "/usr/local/vgpu/libamvgpu.so"
MOUNTS = {LIBRARY: True, "/usr/local/vgpu/share.conf": True, "/usr/local/vgpu/usage": False}
"""The three mounts of a share, and whether they are read-only."""

HELD = {
    "LD_AUDIT": LIBRARY,
    "HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage",
}

EVERY_RENDER_NODE = tuple(f"226:{minor}" for minor in (128, 129, *range(137, 145), 150, 152))


@pytest.fixture(autouse=True)
def cleared(cluster: Cluster) -> Iterator[None]:
    """No test finds pods of another."""
    yield
    cluster.clear()


def gpu_environment(sight: probe.Sight) -> dict[str, str]:
    """What concerns GPUs in the environment of a container's first process."""
    prefixes = ("HIP_", "HSA_", "ROCR_", "LD_", "AMD_", "CUDA_", "GPU_")
    return {key: value for key, value in sight.environment.items() if key.startswith(prefixes)}


def vgpu_mounts(sight: probe.Sight) -> dict[str, bool]:
    """The mounts of a share, and whether they are read-only."""
    return {
        path: "ro" in options
        for path, options in sight.mounts.items()
        if path.startswith("/usr/local/")
    }


def assert_nodes(cluster: Cluster, name: str, container: str, *nodes: str) -> None:
    """Check that a container has these nodes, that they open, and that no others do."""
    numbers = {node: node_number(node) for node in ("kfd", *nodes)}
    minors = {f"{major}:{minor}" for major, minor in numbers.values()}
    others = [number for number in EVERY_RENDER_NODE if number not in minors]
    sight = cluster.look(name, container, others)
    seen = sight.gpu_nodes()
    assert {node: (one.major, one.minor) for node, one in seen.items()} == numbers
    assert {one.answer for one in seen.values()} <= probe.GRANTED
    assert sight.strangers == dict.fromkeys(others, probe.REFUSED)
    assert cluster.allowed(name, container) == minors


def assert_held(cluster: Cluster, name: str, container: str = "main") -> None:
    """Check that the hook found the share held by the library, which is loaded."""
    (line,) = cluster.hook_log(name, container)
    assert line.endswith(": memory held by the library, glibc 2.35 or later")
    sight = cluster.look(name, container)
    assert vgpu_mounts(sight) == MOUNTS
    assert LIBRARY in sight.files


def test_a_quarter_of_a_gpu(cluster: Cluster) -> None:
    cluster.run("quarter", Ask(cores=25, memory=49152), devices=[[MI300X]])
    # 25 % of 304 CUs are 76, which HAMi books as 10 atoms of 8.
    assert gpu_environment(cluster.look("quarter")) == HELD | {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-79",
        "HIP_DEVICE_MEMORY_LIMIT_0": str(49152 * MIB),
    }
    assert_nodes(cluster, "quarter", "main", "dri/card1", "dri/renderD129")
    assert_held(cluster, "quarter")
    annotations = cluster.annotations("quarter")
    gpu = "8eff74a1-0000-1000-801b-b56457addd1b"
    assert annotations["hami.io/bind-phase"] == "success"
    assert annotations["hami.io/amd-devices-to-allocate"] == ";"
    assert annotations["hami.io/amd-cu-allocated"] == f'{{"{gpu}":"0-79"}}'
    cluster.await_unlocked()


def test_two_pods_on_one_gpu(cluster: Cluster) -> None:
    for name, cores, memory in (("one", 25, 49152), ("two", 50, 65536)):
        cluster.run(name, Ask(cores=cores, memory=memory), devices=[[MI300X]])
    one, two = (gpu_environment(cluster.look(name)) for name in ("one", "two"))
    # 50 % are 152 CUs, 19 atoms of 8.
    assert (one["HSA_CU_MASK"], two["HSA_CU_MASK"]) == ("0:0-79", "0:80-231")
    assert one["HIP_DEVICE_MEMORY_LIMIT_0"] == str(49152 * MIB)
    assert two["HIP_DEVICE_MEMORY_LIMIT_0"] == str(65536 * MIB)
    for name in ("one", "two"):
        assert_nodes(cluster, name, "main", "dri/card1", "dri/renderD129")
        assert_held(cluster, name)


def test_two_gpus_in_one_pod(cluster: Cluster) -> None:
    cluster.run("pair", Ask(gpus=2, cores=50, memory=8192), devices=[[MI300X, RADEON]])
    assert gpu_environment(cluster.look("pair")) == HELD | {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b,GPU-3c7ae05d91f4b268",
        "HIP_VISIBLE_DEVICES": "0,1",
        "HSA_CU_MASK": "0:0-151;1:0-31",
        "HIP_DEVICE_MEMORY_LIMIT_0": str(8192 * MIB),
        "HIP_DEVICE_MEMORY_LIMIT_1": str(8192 * MIB),
    }
    nodes = ("dri/card1", "dri/renderD129", "dri/card20", "dri/renderD150")
    assert_nodes(cluster, "pair", "main", *nodes)
    assert_held(cluster, "pair")


def test_a_partition(cluster: Cluster) -> None:
    cluster.run("part", Ask(), devices=[[FOURTH_PARTITION]])
    sight = cluster.look("part")
    # All of it needs no mask and no limit. A partition has no unique id that ROCr would know.
    assert gpu_environment(sight) == {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    assert vgpu_mounts(sight) == {}
    assert_nodes(cluster, "part", "main", "dri/card12", "dri/renderD140")
    assert cluster.hook_log("part") == []


def test_an_init_container_hands_its_share_on(cluster: Cluster) -> None:
    cluster.run(
        "job",
        Ask("first", gpus=0, kind="init"),
        Ask("prepare", cores=75, memory=131072, kind="init"),
        Ask("train", cores=50, memory=65536),
        Ask("serve", cores=25, memory=49152),
        Ask("log", gpus=0),
        devices=[[], [MI300X], [MI300X], [MI300X], []],
    )
    masks = {"prepare": cluster.saw("job", "prepare").environment["HSA_CU_MASK"]}
    for name in ("train", "serve"):
        masks[name] = cluster.look("job", name).environment["HSA_CU_MASK"]
        assert_nodes(cluster, "job", name, "dri/card1", "dri/renderD129")
        assert_held(cluster, "job", name)
    # 75 % of 304 CUs are 228, 29 atoms of 8. It has ended when the others begin.
    assert masks == {"prepare": "0:0-231", "train": "0:0-151", "serve": "0:152-231"}
    for sight in (cluster.saw("job", "first"), cluster.look("job", "log")):
        assert gpu_environment(sight) == {}
        assert vgpu_mounts(sight) == {}
        assert sight.gpu_nodes() == {}


def test_a_whole_gpu_without_hami(cluster: Cluster) -> None:
    cluster.create("plain", Ask())
    cluster.await_running("plain")
    assert gpu_environment(cluster.look("plain")) == {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES": "0",
    }
    assert vgpu_mounts(cluster.look("plain")) == {}
    assert_nodes(cluster, "plain", "main", "dri/card1", "dri/renderD129")
    assert cluster.hook_log("plain") == []


def test_a_pod_without_a_gpu(cluster: Cluster) -> None:
    cluster.create("none", Ask(gpus=0))
    cluster.await_running("none")
    sight = cluster.look("none", strangers=EVERY_RENDER_NODE)
    assert gpu_environment(sight) == {}
    assert sight.gpu_nodes() == {}
    assert set(sight.strangers.values()) == {probe.REFUSED}
