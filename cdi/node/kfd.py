"""The GPU nodes of the KFD topology: what ROCr makes its agents of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdi.cumask import MAX_CUS, RDNA_VERSION
from cdi.errors import PermanentError
from cdi.node import sysfs
from cdi.node.drm import MAX_MINOR

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_MEMORY = 1 << 50
"""A pebibyte, far above any GPU: the bound that keeps garbage out of the planner's arithmetic."""

GPU_HEAPS = (1, 2)
"""KFD heap types that ROCr makes a GPU's pools of: visible to the CPU, and not."""

XGMI = 11
"""KFD type of an XGMI link."""

MULTI_XCC = (range(90400, RDNA_VERSION), range(120500, 10_000_000))
"""``gfx_target_version`` of parts that may have several XCCs, as the MI300 family has.

Every kernel that drives these parts also tells ``num_xcc``.
"""


LOSSES = {
    "simd_count": "no share of it can be made, as its CUs are not known",
    "simd_per_cu": "no share of it can be made, as its CUs are not known",
    "gfx_target_version": "no share of a part of its CUs can be made, as its architecture is not"
    " known",
    "num_xcc": "no share of a part of its CUs can be made, as its XCCs are not known",
    "unique_id": "it is addressed by index",
    "hive_id": "the GPUs that XGMI links reach are not known",
    "num_cp_queues": "its queues are not known",
}
"""What is lost where a property is not known. All others are needed to find the GPU only."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A GPU node of the KFD topology. What its file does not tell is None, or 0 where none is."""

    number: int
    path: str
    has_cpus: bool
    """Whether it is a node of CPUs as well, as the APUs of kernels before 6.6 are."""
    domain: int | None
    location: int | None
    render: int | None
    unique_id: int
    hive_id: int
    gfx_target_version: int
    cus: int
    xccs: int
    queues: int
    faults: Mapping[str, str] = field(default_factory=dict)
    """Why something is not known, by the name of the property that should tell it."""


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


@dataclass(frozen=True, slots=True)
class _Values:
    """The numbers of a KFD node, and why some of them are not known."""

    properties: sysfs.Properties
    faults: dict[str, str]

    def number(
        self, name: str, limit: int, *, least: int = 0, optional: bool = False
    ) -> int | None:
        """Return a number from ``least`` to below the limit; None, and a fault, for anything else.

        That one is missing which not all kernels tell is no fault.
        """
        if optional and name not in self.properties:
            return None
        try:
            number = self.properties.number(name, limit)
        except sysfs.FileError as error:
            self.faults[name] = str(error)
            return None
        if number < least:
            self.faults[name] = f"expected {name} in {self.properties.path}, found {number}"
            return None
        return number


def _agent(number: int, path: str) -> Agent | None:
    """Return the GPU of a KFD node; None for a node of CPUs only."""
    values = _Values(sysfs.Properties(f"{path}/properties"), {})
    simds = values.number("simd_count", 1 << 20, least=1)
    cpus = values.number("cpu_cores_count", 1 << 20, optional=True)
    render = _render(values)
    if not simds and cpus and render is None:
        return None
    version = values.number("gfx_target_version", 10_000_000, least=1) or 0
    # Old kernels do not tell the XCCs, and there is only one then. Where there may be several a
    # missing number must not pass for 1: a mask of single CUs would open the whole GPU.
    single = bool(version) and not any(version in several for several in MULTI_XCC)
    # How a mask is read where WGPs are in several XCCs, nobody has measured.
    limit = 2 if version >= RDNA_VERSION else 256
    xccs = values.number("num_xcc", limit, least=1, optional=single)
    if single and "num_xcc" not in values.properties:
        xccs = 1
    return Agent(
        number=number,
        path=path,
        has_cpus=bool(cpus),
        domain=values.number("domain", 1 << 32, optional=True),
        location=values.number("location_id", 1 << 32),
        render=render,
        unique_id=values.number("unique_id", 1 << 64, optional=True) or 0,
        hive_id=values.number("hive_id", 1 << 64, optional=True) or 0,
        gfx_target_version=version,
        cus=_cus(values, simds),
        xccs=xccs or 0,
        queues=values.number("num_cp_queues", 1 << 20, optional=True) or 0,
        faults=values.faults,
    )


def _cus(values: _Values, simds: int | None) -> int:
    """Return the active CUs; 0 where they are not known."""
    simds_per_cu = values.number("simd_per_cu", 1 << 10, least=1)
    if simds is None or simds_per_cu is None:
        return 0
    cus, rest = divmod(simds, simds_per_cu)
    if rest or cus > MAX_CUS:
        values.faults["simd_count"] = (
            f"expected whole CUs, at most {MAX_CUS}, in {values.properties.path}, found simd_count"
            f" {simds} with simd_per_cu {simds_per_cu}"
        )
        return 0
    return cus


def _render(values: _Values) -> int | None:
    """Return the render minor that a KFD node names; None for 0, a negative or no number."""
    text = values.properties.text("drm_render_minor", "0")
    negative = text.removeprefix("-")
    if negative != text and sysfs.is_decimal(negative):
        return None
    minor = values.number("drm_render_minor", 1 << 32, optional=True) or 0
    # Some kernels print a negative number as an unsigned one.
    return minor if 0 < minor < MAX_MINOR else None


def losses(agent: Agent) -> list[str]:
    """Return a line for all that is not known of a GPU and lost with it."""
    return [f"{LOSSES[name]}: {fault}" for name, fault in agent.faults.items() if name in LOSSES]


def memory(agent: Agent) -> int | None:
    """Return the bytes in a GPU's own memory banks; None if it lists none. Raises FileError.

    ROCr makes the pools of a GPU from exactly these banks, whatever memory stands behind them, and
    never from those of a node of CPUs.
    """
    banks = sysfs.numbered(f"{agent.path}/mem_banks")
    if not banks:
        return None
    total = 0
    for number in banks:
        values = sysfs.Properties(f"{agent.path}/mem_banks/{number}/properties")
        if values.number("heap_type", 1 << 32) in GPU_HEAPS:
            total += values.number("size_in_bytes", MAX_MEMORY)
    return total


def xgmi_links(agent: Agent, warnings: list[str]) -> set[int]:
    """Return the KFD nodes that XGMI links of a node reach.

    The kernel lists the members of a hive in ``io_links``. ``p2p_links`` are ways through a CPU,
    which carry the type of the way's first link and so prove nothing.
    """
    folder = f"{agent.path}/io_links"
    try:
        numbers = sysfs.numbered(folder) or ()
    except sysfs.FileError as error:
        warnings.append(f"the links of KFD node {agent.number} are not known: {error}")
        return set()
    reached = set()
    for number in numbers:
        try:
            values = sysfs.Properties(f"{folder}/{number}/properties")
            if values.number("type", 1 << 32) == XGMI:
                reached.add(values.number("node_to", 1 << 32))
        except sysfs.FileError as error:
            warnings.append(f"link {number} of KFD node {agent.number} is not known: {error}")
    return reached
