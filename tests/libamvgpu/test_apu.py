"""GPUs whose memory is their host's: what HIP and ROCr are told of it, and what holds them to it.

Every entry point is tried on such a GPU in test_entry_points.py.
"""

from __future__ import annotations

import pytest

from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Runtime,
    Share,
)

GIB = 1024 * MIB
LIMIT = 48 * GIB
HOST = 32 * GIB  # the stand-in's system memory
SLACK = 40 * MIB

# A Strix Halo machine: ROCr offers HIP the 96 GiB that ttm.pages_limit=25165824 leaves it.
STRIX_HALO = {"STANDIN_GPUS": "1", "STANDIN_VRAM_MIB": str(96 * 1024)}


@pytest.fixture
def share(library, tmp_path) -> Share:
    return Share.make(tmp_path, library, LIMIT)


def test_hip_takes_it_for_a_part_of_its_host(hip: Runtime, share: Share, start) -> None:
    """HIP 5 asks for no such property, but for the profile of agents before Linux 6.6."""
    driver = start(hip, share, **hip.apu(), **STRIX_HALO)
    assert driver.numbers("integrated") == [0, int(hip.suite in {"sid", "experimental"})]


def test_reports(hip: Runtime, share: Share, start) -> None:
    driver = start(hip, share, **hip.apu(), **STRIX_HALO)
    code, free, total, device_total, properties = driver.numbers("info")
    assert (code, total, device_total, properties) == (0, LIMIT, LIMIT, LIMIT)
    assert free == LIMIT - share.counted()
    assert driver.take("hipMalloc", 47 * GIB)[0] == 0
    assert driver.numbers("info")[1] == LIMIT - share.counted() <= GIB
    assert driver.take("hipMalloc", 2 * GIB)[0] == OUT_OF_MEMORY


def test_reports_of_rocr(hip: Runtime, share: Share, start) -> None:
    """Each pool is another view of the same memory. The system's regions are reported as ever."""
    driver = start(hip, share, **hip.apu(), **STRIX_HALO)
    views = 1 if hip.suite == "bookworm" else 2  # coarse-grained, and later in an extended scope
    system = 3 if hip.suite == "bookworm" else 4
    assert driver.numbers("pools") == [LIMIT] * 2 * views
    assert driver.numbers("regions") == [LIMIT] * 2 * views + [HOST] * 2 * system
    assert driver.numbers("hsa")[5] == LIMIT - share.counted()


def test_without_a_limit_all_is_shown(hip: Runtime, library, tmp_path, start) -> None:
    share = Share(tmp_path, (), library)
    driver = start(hip, share, **hip.apu(), **STRIX_HALO, HSA_CU_MASK="0:0-19")
    assert driver.numbers("info")[2:] == [96 * GIB] * 3


def test_all_views_of_the_memory_count_together(hip: Runtime, share: Share, start) -> None:
    driver = start(hip, share, **hip.apu(), **STRIX_HALO)
    driver.ask("info")
    base = share.counted()
    for entry in ("hipMalloc", "hipMallocManaged", "hsa_amd_memory_pool_allocate+fine"):
        assert driver.take(entry, 12 * GIB)[0] == 0
    assert 36 * GIB <= share.counted() - base <= 36 * GIB + SLACK
    for entry in ("hipMalloc", "hipMallocManaged"):
        assert driver.take(entry, 13 * GIB)[0] == OUT_OF_MEMORY
    assert driver.take("hsa_amd_memory_pool_allocate+fine", 13 * GIB)[0] == HSA_OUT_OF_RESOURCES


def test_host_memory_is_not_counted(hip: Runtime, share: Share, start) -> None:
    driver = start(hip, share, **hip.apu(), **STRIX_HALO)
    driver.ask("info")
    base = share.counted()
    for entry in ("hipHostMalloc", "hipHostRegister", "hsa_memory_allocate+system"):
        assert driver.take(entry, 256 * MIB)[0] == 0
        assert share.counted() == base


@pytest.mark.applies(when=lambda hip, **_: hip != "bookworm")  # HIP 5.2 does not know gfx942
@pytest.mark.parametrize("entry", ["hipMalloc", "hipExtMallocWithFlags+fine", "hipMallocManaged"])
def test_one_of_a_hive(entry: str, hip: Runtime, library, tmp_path, start) -> None:
    """An MI300A: over XGMI it shows its memory in a third, fine-grained pool."""
    share = Share.make(tmp_path, library, 256 * MIB, 512 * MIB)
    driver = start(hip, share, **(hip.apu() | {"STANDIN_ARCH": "gfx942"}))
    assert driver.numbers("pools") == [256 * MIB] * 6
    for device, limit in ((1, 512 * MIB), (0, 256 * MIB)):
        driver.ask(f"device {device}")
        assert driver.numbers("info")[2] == limit
        before = share.counted(device), share.counted(1 - device)
        code, number = driver.take(entry, 160 * MIB)
        assert code == 0
        assert 160 * MIB <= share.counted(device) - before[0] <= 160 * MIB + SLACK
        assert share.counted(1 - device) == before[1]
        assert driver.take(entry, limit)[0] == OUT_OF_MEMORY
        assert driver.give(number) == 0


# ---- before Linux 6.6: one node with the CPU ----


@pytest.mark.applies(when=lambda hip, **_: hip in {"bookworm", "trixie"})  # HIP 6 does not take it
@pytest.mark.parametrize(
    "entry", ["hipMalloc", "hipMallocManaged", "hipMallocAsync", "hipMemCreate", "hipHostMalloc"]
)
def test_memory_of_one_node_with_the_cpu_is_the_systems(
    entry: str, hip: Runtime, library, tmp_path, start
) -> None:
    """ROCr has no pool for it, and HIP gives it memory of the CPU's."""
    share = Share.make(tmp_path, library, 256 * MIB)
    driver = start(hip, share, **hip.apu("node"), STANDIN_GPUS="1")
    assert driver.numbers("pools") == []
    assert driver.numbers("info")[1] <= 256 * MIB
    code, number = driver.take(entry, 112 * MIB)
    assert code == 0
    managed = 112 * MIB if entry == "hipMallocManaged" else 0
    assert 112 * MIB <= share.counted() == share.allocated() + managed <= 112 * MIB + SLACK
    assert driver.take(entry, 160 * MIB)[0] == OUT_OF_MEMORY
    assert driver.take("hipHostMalloc", 160 * MIB)[0] == OUT_OF_MEMORY
    assert driver.give(number) == 0


@pytest.mark.applies(when=lambda hip, **_: hip in {"sid", "experimental"})
def test_hip_6_does_not_take_one_node_with_the_cpu(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, 256 * MIB)
    extra = {**hip.apu("node"), "STANDIN_GPUS": "1"}
    for driver in (start(hip, share, **extra), start(hip, share, **extra, LD_AUDIT="")):
        assert driver.numbers("count")[1] == 0
