"""The GPU nodes of the KFD topology: what ROCr makes its agents of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdi.cumask import MAX_CUS, RDNA_VERSION
from cdi.errors import PermanentError
from cdi.node import sysfs
from cdi.node.drm import MAX_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_VRAM = 1 << 50
"""A pebibyte, far above any GPU: the bound that keeps garbage out of the planner's arithmetic."""

VRAM_HEAPS = (1, 2)
"""KFD heap types of VRAM: visible to the CPU, and not."""

XGMI = 11
"""KFD type of an XGMI link."""

MULTI_XCC_VERSION = 90400
"""``gfx_target_version`` from which on a CDNA part may have several XCCs (the MI300 family).

Every kernel that drives these parts also tells ``num_xcc``.
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """A GPU node of the KFD topology."""

    number: int
    path: str
    domain: int | None
    location: int
    render: int | None
    unique_id: int
    hive_id: int
    gfx_target_version: int
    cus: int
    xccs: int
    queues: int


def agents(nodes: str, warnings: list[str]) -> Iterator[Agent]:
    """Yield the GPU nodes of the KFD topology, in ROCr's order."""
    try:
        numbers = sysfs.numbered(nodes)
    except sysfs.FileError as error:
        raise PermanentError(
            str(error), "run as root, on the host or with the host's /sys mounted"
        ) from None
    if numbers is None:
        raise PermanentError(
            f"expected the KFD topology, found no folder {nodes}",
            "use a kernel with CONFIG_HSA_AMD and a GPU that it supports for compute",
        )
    for number in numbers:
        try:
            agent = _agent(number, f"{nodes}/{number}")
        except sysfs.FileError as error:
            warnings.append(f"KFD node {number} is left out: {error}")
        else:
            if agent is not None:
                yield agent


def _agent(number: int, path: str) -> Agent | None:
    """Return the GPU of a KFD node; None for a node of CPUs only."""
    values = sysfs.Properties(f"{path}/properties")
    simds = values.number("simd_count", 1 << 20)
    if not simds:
        if values.number("cpu_cores_count", 1 << 20, 0):
            return None
        raise sysfs.FileError(f"expected CPUs or SIMDs in {values.path}, found neither")
    simds_per_cu = values.number("simd_per_cu", 1 << 10)
    cus, rest = divmod(simds, simds_per_cu or simds + 1)
    if rest or not 0 < cus <= MAX_CUS:
        raise sysfs.FileError(
            f"expected whole CUs, at most {MAX_CUS}, in {values.path}, found simd_count {simds}"
            f" with simd_per_cu {simds_per_cu}"
        )
    version = values.number("gfx_target_version", 10_000_000)
    if not version:
        raise sysfs.FileError(f"expected a gfx_target_version in {values.path}, found 0")
    # Old kernels do not tell the XCCs, and there is only one then. Where there may be several a
    # missing number must not pass for 1: a mask of single CUs would open the whole GPU.
    several = MULTI_XCC_VERSION <= version < RDNA_VERSION
    xccs = values.number("num_xcc", 256, None if several else 1)
    return Agent(
        number=number,
        path=path,
        domain=values.number("domain", 1 << 32) if "domain" in values else None,
        location=values.number("location_id", 1 << 32),
        render=_render(values),
        unique_id=values.number("unique_id", 1 << 64, 0),
        hive_id=values.number("hive_id", 1 << 64, 0),
        gfx_target_version=version,
        cus=cus,
        xccs=max(1, xccs),
        queues=values.number("num_cp_queues", 1 << 20, 0),
    )


def _render(values: sysfs.Properties) -> int | None:
    """Return the render minor that a KFD node names; None for 0, a negative or no number."""
    text = values.text("drm_render_minor", "0")
    negative = text.removeprefix("-")
    if negative != text and sysfs.is_decimal(negative):
        return None
    minor = values.number("drm_render_minor", 1 << 32, 0)
    # Some kernels print a negative number as an unsigned one.
    return minor if 0 < minor < MAX_MINOR else None


def vram(agent: Agent) -> int | None:
    """Return the bytes of VRAM in a KFD node's memory banks; None if it lists no bank."""
    banks = sysfs.numbered(f"{agent.path}/mem_banks")
    if not banks:
        return None
    total = 0
    for number in banks:
        values = sysfs.Properties(f"{agent.path}/mem_banks/{number}/properties")
        if values.number("heap_type", 1 << 32) in VRAM_HEAPS:
            total += values.number("size_in_bytes", MAX_VRAM)
    return total


def xgmi_links(agent: Agent) -> set[int]:
    """Return the KFD nodes that XGMI links of a node reach; raises FileError.

    The kernel lists the members of a hive in ``io_links``. ``p2p_links`` are ways through a CPU,
    which carry the type of the way's first link and so prove nothing.
    """
    folder = f"{agent.path}/io_links"
    reached = set()
    for number in sysfs.numbered(folder) or ():
        values = sysfs.Properties(f"{folder}/{number}/properties")
        if values.number("type", 1 << 32) == XGMI:
            reached.add(values.number("node_to", 1 << 32))
    return reached
