"""What a container holds of GPUs, as its own processes see it.

The node is the sample `mixed`. Its first device is an MI300X (card1, renderD129) of 304 CUs and
196592 MiB, booked in atoms of 8; then come 8 partitions of another (card9 to card16, renderD137 to
renderD144) of 38 CUs, and a Radeon RX 9070 XT (card20, renderD150) of 64 CUs in pairs.
"""

from tests.cluster.cluster import Cluster
from tests.integration import probe
from tests.integration.sandbox import node_number

MI300X, FOURTH_PARTITION, RADEON = 0, 4, 9
"""Places in the node's annotation."""

MIB = 1 << 20

LIBRARY = "/usr/local/vgpu/libamvgpu.so"
MOUNTS = {LIBRARY: True, "/usr/local/vgpu/share.conf": True, "/usr/local/vgpu/usage": False}
"""The three mounts of a share, and whether they are read-only."""

HELD = {
    "LD_AUDIT": LIBRARY,
    "HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage",
}

EVERY_RENDER_NODE = tuple(f"226:{minor}" for minor in (128, 129, *range(137, 145), 150, 152))


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
