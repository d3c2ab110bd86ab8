"""Writes libamvgpu/entry-points.md from the headers of each HIP and the cases that tests drive.

python -m tests.libamvgpu.table
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.libamvgpu import runtime
from tests.libamvgpu.entry_points import (
    CASES,
    IMPORTS,
    NOTHING,
    UNCOUNTED,
    Case,
    Import,
)

if TYPE_CHECKING:
    from pathlib import Path

TABLE = runtime.SOURCE / "entry-points.md"
HIP = {"bookworm": "5.2", "trixie": "5.7", "sid": "6.4", "experimental": "7.2"}

# Whatever in a header might obtain memory, or name memory that another obtained.
SUSPECT = re.compile(
    r"^hip\w*(Malloc|Alloc(?!ation)|Array(3D)?Create|MemCreate|MemMap|MemRetain|Import|IpcOpenMem"
    r"|MappedBuffer|MappedMipmappedArray|HostRegister|AddressReserve|MemPoolCreate)"
    r"|^hsa_\w*(_allocate|vmem_\w*(create|map|reserve|import|retain)|memory_attach|map_buffer|"
    r"memory_lock)"
)

SYSTEM = "not counted: system memory"
ADDRESSES = "not counted: address space only"
NOWHERE = "declared, but in no library"
OTHERS = {
    "hipMemMapArrayAsync": ADDRESSES,
    "hipImportExternalSemaphore": "no memory",
    "hipExternalMemoryGetMappedMipmappedArray": NOWHERE,
    "hipMemPoolCreate": "when memory is taken from the pool",
    "hipGraphMemAllocNodeGetParams": "no memory",
    "hsa_amd_vmem_address_reserve_align": ADDRESSES,
    "hsa_amd_vmem_unmap": "gives back",
    "hsa_amd_interop_unmap_buffer": "gives back",
    "hsa_amd_memory_lock_to_pool": SYSTEM,
}


def declared(tree: Path) -> set[str]:
    """Functions of a tree's HIP and ROCr headers that may obtain memory."""
    folder = tree / "usr/include"
    text = (folder / "hip/hip_runtime_api.h").read_text(errors="replace")
    names = set(re.findall(r"^\s*hipError_t\s+(hip\w+)\s*\(", text, re.MULTILINE))
    for header in ("hsa.h", "hsa_ext_amd.h"):
        text = (folder / "hsa" / header).read_text(errors="replace")
        names |= set(
            re.findall(r"^\s*(?:hsa_status_t\s+(?:HSA_API\s+)?)?(hsa_\w+)\(", text, re.MULTILINE)
        )
    return {name for name in names if SUSPECT.search(name)}


def defined(tree: Path) -> set[str]:
    """The same of the libraries themselves."""
    found: set[str] = set()
    for pattern in ("libamdhip64.so.[0-9]", "libhsa-runtime64.so.1"):
        library = next((tree / runtime.LIBRARIES).glob(pattern))
        listed = subprocess.run(
            ["nm", "--dynamic", "--defined-only", library],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found |= {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    return {name for name in found if SUSPECT.search(name)}


def rows(trees: dict[str, Path]) -> list[tuple[str, str, str, str, str]]:
    """(entry point, HIP versions, counted how, given back by, tested by) for each function."""
    in_hip = defaultdict(list)
    for suite, tree in trees.items():
        for name in declared(tree):
            in_hip[name].append(HIP[suite])
    cases: dict[str, list[Case]] = defaultdict(list)
    for case in (*CASES, *UNCOUNTED, *IMPORTS):
        for name in case.takes:
            cases[name].append(case)
    made = []
    for name in sorted(in_hip):
        found = cases.get(name, [])
        counted = found[0].counted if found else OTHERS[name]
        if counted == NOTHING:
            counted = ADDRESSES if "address" in name.lower() else SYSTEM
        gives = sorted({give for case in found for give in case.gives})
        tested = "<br>".join(f"`{case.name}`{caveat(case)}" for case in found)
        made.append(
            (
                f"`{name}`",
                ", ".join(in_hip[name]),
                counted,
                ", ".join(f"`{give}`" for give in gives),
                tested,
            )
        )
    return made


def caveat(case: Case) -> str:
    said = []
    if case.absent:
        said.append(f"an error in {versions(case.absent)}")
    if isinstance(case, Import) and case.hollow:
        said.append(f"does nothing in {versions(case.hollow)}")
    return f" ({'; '.join(said)})" if said else ""


def versions(suites: frozenset[str]) -> str:
    return ", ".join(HIP[suite] for suite in HIP if suite in suites)


def render(trees: dict[str, Path]) -> str:
    lines = [
        "# What obtains device memory, and how it is counted",
        "",
        "Made by `python -m tests.libamvgpu.table` from the headers of HIP and ROCr as Debian has",
        "them and from the cases of `tests/libamvgpu/entry_points.py`, which"
        " `test_entry_points.py`",
        "drives on each of these HIPs: granted under the limit, refused over it, given back whole,",
        "with the account of the stand-in for ROCr as the outside source. `test_imports.py` has",
        "two processes share memory: both see the same bytes, and the owner alone is charged.",
        "Nothing of it was tried on AMD hardware.",
        "",
        "| entry point | HIP | counted | given back by | tested by the case |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows(trees)]
    lines += [
        "",
        "What a program asks beside these (streams, queues, code objects, scratch memory) is",
        "counted where HIP obtains it from a pool of ROCr, as it does for the memory of streams;",
        "what ROCr itself takes of the driver is not seen at this level.",
        "",
        "HIP reports success for the launch of a graph whose nodes got no memory, on a GPU that is",
        "full as on one that is limited; no memory is obtained then. A node that is larger than",
        "the limit is refused when it is added.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    TABLE.write_text(render({suite: runtime.hip_tree(suite) for suite in HIP}))
