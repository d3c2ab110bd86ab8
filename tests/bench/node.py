"""Nodes to measure: a bundled sample, or as many MI210 as are wanted, with so many shares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cdi import cumask
from cdi.node import sample, topology
from cdi.plan.share import Share, Slice
from cdi.state import ledger
from cdi.state.ledger import Ledger

CUS = 104
"""Of an MI210, whose atom is one CU."""

VRAM = 64 << 30

SHARE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class BenchNode:
    """A sysroot with the directories that amd-cdi works on beside it."""

    folder: Path

    @property
    def sysroot(self) -> Path:
        return self.folder / "root"

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def spec_file(self) -> Path:
        return self.folder / "cdi/amd.com-gpu.yaml"

    @property
    def options(self) -> tuple[str, ...]:
        return (
            f"--sysroot={self.sysroot}",
            f"--spec-dir={self.spec_file.parent}",
            f"--state-dir={self.state_dir}",
        )

    def forget(self) -> None:
        """Remove the spec, so that it is written again."""
        self.spec_file.unlink(missing_ok=True)


def of_sample(name: str, folder: Path, shares: int) -> BenchNode:
    """Return a sample node with so many shares, equally spread over its partitions."""
    node = BenchNode(folder)
    sample.expand(name, node.sysroot)
    _book(node, shares)
    return node


def of_gpus(gpus: int, folder: Path, shares: int) -> BenchNode:
    """Return a node of so many MI210 and shares."""
    node = BenchNode(folder)
    driver = node.sysroot / "sys/bus/pci/drivers/amdgpu"
    nodes = node.sysroot / "sys/class/kfd/kfd/topology/nodes"
    for index in range(gpus):
        bus, serial = index + 1, 0x1000 + index
        device = driver / f"0000:{bus:02x}:00.0"
        for name in (f"card{index}", f"renderD{128 + index}"):
            (device / "drm" / name).mkdir(parents=True)
        for name, content in {
            "device": "0x740f",
            "revision": "0x02",
            "unique_id": f"{serial:016x}",
            "numa_node": "0",
            "mem_info_vram_total": str(VRAM),
            "product_name": "AMD Instinct MI210",
        }.items():
            (device / name).write_text(f"{content}\n")
        bank = nodes / str(index) / "mem_banks/0"
        bank.mkdir(parents=True)
        (bank / "properties").write_text(f"heap_type 1\nsize_in_bytes {VRAM}\n")
        (nodes / str(index) / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count {CUS * 4}\nsimd_per_cu 4\ngfx_target_version 90010\n"
            f"location_id {bus << 8}\ndomain 0\ndrm_render_minor {128 + index}\n"
            f"unique_id {serial}\nhive_id 0\nnum_cp_queues 24\n"
        )
    _book(node, shares)
    return node


def _book(node: BenchNode, count: int) -> None:
    """Write a ledger of equal shares: as many CUs each as leave room for all."""
    gpus = topology.read_node(node.sysroot).gpus
    places = [(gpu, partition) for gpu in gpus for partition in gpu.partitions]
    each = -(-count // len(places))
    shares = []
    for number in range(count):
        turn, place = divmod(number, len(places))
        gpu, partition = places[place]
        atoms = partition.cus // partition.atom // each
        size = atoms * partition.atom
        if not size:
            raise ValueError(f"{count} shares are more than the node has atoms for")
        part = Slice(
            gpu.pci,
            partition.index,
            gpu.compute_mode,
            gpu.unique_id,
            cumask.span(turn * size, size),
            SHARE_BYTES,
        )
        shares.append(Share(f"share-n{number:04}", (part,)))
    node.state_dir.mkdir(parents=True)
    ledger.path_in(node.state_dir).write_bytes(ledger.encode(Ledger(tuple(shares))))
