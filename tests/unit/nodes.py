"""Small nodes of known parts, written down by hand."""

from __future__ import annotations

from cdi.node.gpu import Gpu, Node, Partition
from cdi.plan.share import Share, Slice

GIB = 1 << 30

MI300X = "0000:05:00.0"
RADEON = "0000:43:00.0"


def partition(**changes: object) -> Partition:
    """Return an MI300X that is not partitioned: 304 CUs on 8 XCCs, 192 GiB."""
    fields: dict[str, object] = {
        "index": 0,
        "kfd_node": 2,
        "render_minor": 128,
        "card_minor": 1,
        "gfx_target_version": 90402,
        "cus": 304,
        "xccs": 8,
        "queues": 24,
        "memory_bytes": 192 * GIB,
        "memory_kind": "VRAM",
    }
    return Partition(**fields | changes)  # type: ignore[arg-type]


def gpu(**changes: object) -> Gpu:
    """Return an MI300X in SPX."""
    fields: dict[str, object] = {
        "index": 0,
        "pci": MI300X,
        "device_id": 0x74A1,
        "revision": 0,
        "product": "AMD Instinct MI300X",
        "unique_id": 0x8E1BB56457ADDD1B,
        "numa_node": 0,
        "hive_id": 0,
        "xgmi_peers": (),
        "compute_mode": "spx",
        "compute_modes": ("spx", "cpx"),
        "memory_mode": "nps1",
        "memory_modes": ("nps1",),
        "partitions": (partition(),),
    }
    return Gpu(**fields | changes)  # type: ignore[arg-type]


def cpx() -> Gpu:
    """Return the MI300X in CPX: eight partitions of 38 CUs, of which seven have no card node."""
    return gpu(
        compute_mode="cpx",
        partitions=tuple(
            partition(
                index=index,
                kfd_node=2 + index,
                render_minor=128 + index,
                card_minor=None if index else 1,
                cus=38,
                xccs=1,
                memory_bytes=24 * GIB,
            )
            for index in range(8)
        ),
    )


def radeon() -> Gpu:
    """Return an RX 7900 XTX: 96 CUs in 48 WGPs, 24 GiB, no serial."""
    return gpu(
        index=1,
        pci=RADEON,
        device_id=0x744C,
        revision=0xC8,
        product="AMD Radeon RX 7900 XTX",
        unique_id=0,
        compute_mode="",
        compute_modes=(),
        memory_mode="",
        memory_modes=(),
        partitions=(
            partition(
                kfd_node=1,
                render_minor=129,
                card_minor=0,
                gfx_target_version=110000,
                cus=96,
                xccs=1,
                memory_bytes=24 * GIB,
            ),
        ),
    )


def node(*gpus: Gpu) -> Node:
    """Return a node of these GPUs, an MI300X and a Radeon by default."""
    return Node(gpus or (gpu(), radeon()))


def slice_of(gpu: Gpu, cus: int, memory: int, index: int = 0) -> Slice:
    """Return a slice of a GPU's partition."""
    return Slice(gpu.pci, index, gpu.compute_mode, gpu.unique_id, cus, memory)


def share(name: str, *slices: Slice) -> Share:
    """Return a share."""
    return Share(name, slices)
