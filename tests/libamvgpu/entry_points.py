"""Every entry point of HIP and ROCr that obtains device memory, and how it is counted.

The table of libamvgpu/entry-points.md is generated from here (tests/libamvgpu/table.py), and
test_entry_points.py drives each `case` on each HIP. `absent` names the suites whose HIP does not
have it or does not carry it out without a GPU; the tests hold that against the real library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

POOL = "at ROCr's level, by the pool's size"
HANDLE = "at ROCr's level, by handle, until the last release and unmap"
MANAGED = "at HIP's level: no pool is behind it"
ARRAY = "at ROCr's level; what HIP moved into host memory instead is undone and refused"
NOTHING = "not counted"
HOST = "not counted: system memory; HIP 5 takes it from the device, and there it is counted"
PAID = "not counted: the process that obtained it pays"


@dataclass(frozen=True)
class Case:
    """A way of taking memory and giving it back, as tests/driver.c names it."""

    name: str
    takes: tuple[str, ...]  # entry points that obtain
    gives: tuple[str, ...]  # entry points that release
    counted: str
    absent: frozenset[str] = field(default_factory=frozenset)
    # Suites whose HIP itself keeps the memory after the release, as the stand-in's account shows.
    kept: frozenset[str] = field(default_factory=frozenset)
    # Suites whose HIP keeps chunks of a request that was refused in the end.
    hoards: frozenset[str] = field(default_factory=frozenset)
    standin: bool = True  # the stand-in's account grows as well
    silent: bool = False  # HIP reports success although it got no memory, on a full GPU too
    held: bool = True  # what is taken is still held when the case has taken it
    # Suites whose HIP takes from the device what others take from the system.
    device: frozenset[str] = field(default_factory=frozenset)
    # Suites whose HIP has no such memory on a GPU without a fine-grained pool, as APUs are.
    fine: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class Import(Case):
    """Memory of another process; `gives` only closes it. test_imports.py drives it."""

    counted: str = PAID
    owner: str = ""  # the case by which the other process obtained the memory
    reaches: str = ""  # the function of ROCr that is called for it
    hollow: frozenset[str] = field(default_factory=frozenset)  # success, and nothing is done


def suites(*names: str) -> frozenset[str]:
    return frozenset(names)


OLD = suites("bookworm", "trixie")  # HIP 5
NEW = suites("experimental")  # HIP 7.2
ALL = suites("bookworm", "trixie", "sid", "experimental")

CASES = (
    Case("hipMalloc", ("hipMalloc",), ("hipFree",), POOL),
    Case("hipMalloc+hipFreeAsync", ("hipMalloc",), ("hipFreeAsync",), POOL),
    Case("hipExtMallocWithFlags", ("hipExtMallocWithFlags",), ("hipFree",), POOL),
    Case("hipExtMallocWithFlags+fine", ("hipExtMallocWithFlags",), ("hipFree",), POOL, fine=OLD),
    Case("hipMallocPitch", ("hipMallocPitch",), ("hipFree",), POOL),
    Case("hipMemAllocPitch", ("hipMemAllocPitch",), ("hipFree",), POOL),
    Case("hipMalloc3D", ("hipMalloc3D",), ("hipFree",), POOL),
    Case("hipMallocManaged", ("hipMallocManaged",), ("hipFree",), MANAGED, standin=False),
    Case(
        "hipMallocManaged+hipFreeAsync",
        ("hipMallocManaged",),
        ("hipFreeAsync",),
        MANAGED,
        standin=False,
    ),
    Case(
        "hipMallocAsync",
        ("hipMallocAsync",),
        ("hipFreeAsync", "hipMemPoolTrimTo"),
        POOL,
        hoards=NEW,
    ),
    Case(
        "hipMallocAsync+hipFree",
        ("hipMallocAsync",),
        ("hipFree", "hipMemPoolTrimTo"),
        POOL,
        hoards=NEW,
    ),
    Case(
        "hipMallocFromPoolAsync",
        ("hipMallocFromPoolAsync",),
        ("hipMemPoolDestroy",),
        POOL,
        hoards=NEW,
    ),
    Case(
        "hipMallocFromPoolAsync+hipMemPoolTrimTo",
        ("hipMallocFromPoolAsync",),
        ("hipFreeAsync", "hipMemPoolTrimTo"),
        POOL,
        hoards=NEW,
    ),
    Case("hipMemCreate", ("hipMemCreate",), ("hipMemRelease",), HANDLE, kept=OLD),
    Case(
        "hipMemCreate+hipMemMap",
        ("hipMemCreate", "hipMemMap"),
        ("hipMemRelease", "hipMemUnmap"),
        HANDLE,
        absent=OLD,
    ),
    Case(
        "hipMemCreate+hipMemRetainAllocationHandle",
        ("hipMemCreate", "hipMemRetainAllocationHandle"),
        ("hipMemRelease", "hipMemUnmap"),
        HANDLE,
        absent=OLD,
        held=False,  # HIP's retained handle does not keep the memory, as the stand-in shows
    ),
    Case("hipMallocArray", ("hipMallocArray",), ("hipFreeArray",), ARRAY),
    Case("hipMalloc3DArray", ("hipMalloc3DArray",), ("hipFreeArray",), ARRAY),
    Case("hipArrayCreate", ("hipArrayCreate",), ("hipArrayDestroy",), ARRAY),
    Case("hipArray3DCreate", ("hipArray3DCreate",), ("hipArrayDestroy",), ARRAY),
    Case(
        "hipMallocMipmappedArray",
        ("hipMallocMipmappedArray",),
        ("hipFreeMipmappedArray",),
        ARRAY,
        absent=ALL,
    ),
    Case(
        "hipMipmappedArrayCreate",
        ("hipMipmappedArrayCreate",),
        ("hipMipmappedArrayDestroy",),
        ARRAY,
        absent=suites("trixie", "sid", "experimental"),
    ),
    Case(
        "hipGraphAddMemAllocNode",
        ("hipGraphAddMemAllocNode", "hipGraphLaunch"),
        ("hipFreeAsync", "hipDeviceGraphMemTrim"),
        POOL,
        absent=suites("bookworm"),
        kept=suites("experimental"),
        silent=True,
    ),
    Case(
        "hsa_amd_memory_pool_allocate",
        ("hsa_amd_memory_pool_allocate",),
        ("hsa_amd_memory_pool_free",),
        POOL,
    ),
    Case(
        "hsa_amd_memory_pool_allocate+fine",
        ("hsa_amd_memory_pool_allocate",),
        ("hsa_amd_memory_pool_free",),
        POOL,
    ),
    Case("hsa_memory_allocate", ("hsa_memory_allocate",), ("hsa_memory_free",), POOL),
    Case(
        "hsa_amd_vmem_handle_create",
        ("hsa_amd_vmem_handle_create",),
        ("hsa_amd_vmem_handle_release",),
        HANDLE,
        absent=suites("bookworm"),
    ),
    Case(
        "hsa_amd_vmem_map",
        ("hsa_amd_vmem_map", "hsa_amd_vmem_retain_alloc_handle"),
        ("hsa_amd_vmem_unmap", "hsa_amd_vmem_handle_release"),
        HANDLE,
        absent=suites("bookworm"),
    ),
)

# Address space and system memory.
UNCOUNTED = (
    Case(
        "hipMemAddressReserve",
        ("hipMemAddressReserve",),
        ("hipMemAddressFree",),
        NOTHING,
        kept=OLD,  # these reserve nothing, and say so when it is given back
    ),
    Case("hipHostMalloc", ("hipHostMalloc",), ("hipHostFree",), NOTHING),
    Case("hipHostAlloc", ("hipHostAlloc",), ("hipHostFree",), HOST, device=OLD),
    Case("hipMallocHost", ("hipMallocHost",), ("hipHostFree",), NOTHING),
    Case("hipMemAllocHost", ("hipMemAllocHost",), ("hipHostFree",), NOTHING),
    Case(
        "hipHostRegister",
        ("hipHostRegister",),
        ("hipHostUnregister",),
        NOTHING,
        kept=suites("bookworm"),  # does not survive the end of it over the stand-in
    ),
    Case("hsa_amd_memory_lock", ("hsa_amd_memory_lock",), ("hsa_amd_memory_unlock",), NOTHING),
    Case("hsa_memory_allocate+system", ("hsa_memory_allocate",), ("hsa_memory_free",), NOTHING),
    Case(
        "hsa_amd_vmem_address_reserve",
        ("hsa_amd_vmem_address_reserve",),
        ("hsa_amd_vmem_address_free",),
        NOTHING,
        absent=suites("bookworm"),
    ),
)

IMPORTS = (
    Import(
        "hipIpcOpenMemHandle",
        ("hipIpcOpenMemHandle",),
        ("hipIpcCloseMemHandle",),
        owner="hipMalloc",
        reaches="hsa_amd_ipc_memory_attach",
    ),
    Import(
        "hipMemImportFromShareableHandle",
        ("hipMemImportFromShareableHandle",),
        ("hipMemUnmap", "hipMemRelease"),
        owner="hipMemCreate+hipMemExportToShareableHandle",
        reaches="hsa_amd_vmem_import_shareable_handle",
        absent=OLD,
    ),
    Import(
        "hipMemPoolImportPointer",
        ("hipMemPoolImportFromShareableHandle", "hipMemPoolImportPointer"),
        ("hipFreeAsync",),
        owner="hipMallocFromPoolAsync+hipMemPoolExportPointer",
        reaches="hsa_amd_ipc_memory_attach",
        hollow=suites("bookworm"),
    ),
    Import(
        "hipExternalMemoryGetMappedBuffer",
        ("hipImportExternalMemory", "hipExternalMemoryGetMappedBuffer"),
        ("hipDestroyExternalMemory",),
        owner="hipMalloc",
        reaches="hsa_amd_interop_map_buffer",
    ),
    Import(
        "hsa_amd_ipc_memory_attach",
        ("hsa_amd_ipc_memory_attach",),
        ("hsa_amd_ipc_memory_detach",),
        owner="hsa_amd_memory_pool_allocate",
        reaches="hsa_amd_ipc_memory_attach",
    ),
    Import(
        "hsa_amd_interop_map_buffer",
        ("hsa_amd_interop_map_buffer",),
        ("hsa_amd_interop_unmap_buffer",),
        owner="hsa_amd_memory_pool_allocate",
        reaches="hsa_amd_interop_map_buffer",
    ),
    Import(
        "hsa_amd_vmem_import_shareable_handle",
        ("hsa_amd_vmem_import_shareable_handle",),
        ("hsa_amd_vmem_unmap", "hsa_amd_vmem_handle_release"),
        owner="hsa_amd_vmem_export_shareable_handle",
        reaches="hsa_amd_vmem_import_shareable_handle",
        absent=suites("bookworm"),
    ),
)
