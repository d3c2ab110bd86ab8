"""Limits and what is reported of them, for each GPU and by each way of naming it."""

from __future__ import annotations

import struct
import time

import pytest

from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Runtime,
    Share,
)

POOL = "hsa_amd_memory_pool_allocate"
CARD = 1 << 36  # 64 GiB, the stand-in's
SLACK = 40 * MIB  # what HIP may take by itself: the memory of streams, chunks of pools

WELL_FORMED = {
    "268435456": 256 * MIB,
    "262144k": 256 * MIB,
    "262144K": 256 * MIB,
    "256m": 256 * MIB,
    "256M": 256 * MIB,
    "1g": 1024 * MIB,
    "1G": 1024 * MIB,
    "0": 0,
    "0m": 0,
    "000256m": 256 * MIB,
    "1t": CARD,  # more than the card has
    "16777215t": CARD,
    "18446744073709551615": CARD,
}
MALFORMED = [
    "",
    " ",
    "256 m",
    "m",
    "-1",
    "+5",
    "0x100",
    "1.5g",
    "256mb",
    "256mm",
    "16777216t",  # 2^64
    "18446744073709551616",
    "99999999999999999999999",
    "unlimited",
    "256m\t",
    "\u0662\u0665\u0666m",
]


@pytest.mark.parametrize("text", WELL_FORMED)
def test_well_formed(text: str, trixie: Runtime, library, tmp_path, start) -> None:
    driver = start(trixie, Share.make(tmp_path, library, text), STANDIN_GPUS="1")
    assert driver.numbers("hsa")[1] == WELL_FORMED[text]
    fits = WELL_FORMED[text] > MIB
    assert driver.take(POOL, MIB)[0] == (0 if fits else HSA_OUT_OF_RESOURCES)
    assert "ERROR" not in driver.finish()


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_denies(text: str, trixie: Runtime, library, tmp_path, start) -> None:
    driver = start(trixie, Share.make(tmp_path, library, text, "1g"))
    assert driver.take(POOL, 4096)[0] == HSA_OUT_OF_RESOURCES
    driver.ask("device 1")
    assert driver.take(POOL, 4096)[0] == 0
    said = driver.finish()
    assert "HIP_DEVICE_MEMORY_LIMIT_0: expected a number of bytes" in said


def test_one_limit_for_all_that_have_none(trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "1g", "2g", "3g")
    environment = {"HIP_DEVICE_MEMORY_LIMIT": "512m", "STANDIN_GPUS": "3"}
    lacking = Share(share.folder, share.limits[:1], library)
    driver = start(trixie, lacking, **environment)
    for device, limit in enumerate((1024, 512, 512)):
        driver.ask(f"device {device}")
        assert driver.numbers("hsa")[1] == limit * MIB


def test_sixty_four_gpus_have_a_limit_each(hip: Runtime, library, tmp_path, start) -> None:
    limits = [(200 + 8 * device) * MIB for device in range(64)]
    share = Share.make(tmp_path, library, *limits)
    assert share.usage.stat().st_size == 544_768  # as region.md has it
    driver = start(hip, share, STANDIN_GPUS="64")
    assert driver.numbers("count") == [0, 64]
    for device, limit in reversed(list(enumerate(limits))):
        driver.ask(f"device {device}")
        assert driver.numbers("info")[2] == driver.numbers("hsa")[1] == limit
        assert driver.take("hipMalloc", (device + 1) * MIB)[0] == 0
        assert driver.take("hipMallocManaged", (device + 1) * MIB)[0] == 0
        # Both fit a neighbour with a higher limit.
        assert driver.take(POOL, limit - 2 * device * MIB)[0] == HSA_OUT_OF_RESOURCES
        assert driver.take("hipMalloc", limit + MIB)[0] == OUT_OF_MEMORY
    for device in range(64):
        managed = (device + 1) * MIB
        assert share.counted(device) == share.allocated(device) + managed
        assert 0 <= share.counted(device) - 2 * managed < SLACK
    assert share.usage.stat().st_size == 544_768
    assert struct.unpack_from("<I", share.usage.read_bytes(), 12) == (64,)
    assert struct.unpack_from("<64Q", share.usage.read_bytes(), 32) == tuple(limits)


ENTRIES = ("hipMalloc", "hipMallocManaged", "hipMallocAsync", POOL, "hsa_memory_allocate")


@pytest.mark.parametrize("visible", [None, "64", "64,0"])
def test_sixty_fifth_gpu_is_refused(
    visible: str | None, hip: Runtime, library, tmp_path, start
) -> None:
    """There is no column to count it in. HIP's own number of it may be any."""
    share = Share.make(tmp_path, library, *["256m"] * 64)
    extra = {"STANDIN_GPUS": "65", **({"HIP_VISIBLE_DEVICES": visible} if visible else {})}
    driver = start(hip, share, **extra)
    driver.ask(f"device {0 if visible else 64}")
    assert driver.ask("address") == ["0", "0000:c3:00.0"]
    assert driver.numbers("info") == [0, 0, 0, 0, 0]
    for entry in ENTRIES[:3]:
        assert driver.take(entry, MIB)[0] == OUT_OF_MEMORY
    driver.ask("device 64")  # ROCr's, when HIP has no such
    for entry in ENTRIES[3:]:
        assert driver.take(entry, MIB)[0] == HSA_OUT_OF_RESOURCES
    if visible != "64":
        driver.ask(f"device {1 if visible else 63}")
        assert driver.take("hipMalloc", MIB)[0] == 0
        assert share.counted(0 if visible else 63) == share.allocated(0 if visible else 63) >= MIB
    assert "device 64: expected at most 64 devices" in driver.finish()
    assert share.allocated(64) == 0


def test_sixty_fifth_gpu_without_any_limit(hip: Runtime, library, tmp_path, start) -> None:
    """A share of compute units only counts nothing and refuses nothing."""
    share = Share(tmp_path, (), library)
    driver = start(hip, share, STANDIN_GPUS="65", HSA_CU_MASK="0:0-75")
    driver.ask("device 64")
    for entry in ENTRIES:
        assert driver.take(entry, MIB)[0] == 0
    assert driver.numbers("info")[2] == CARD
    assert "ERROR" not in driver.finish()


def test_reports(hip: Runtime, library, tmp_path, start) -> None:
    """hipMemGetInfo, hipDeviceTotalMem and the properties tell the limit, and what is left."""
    share = Share.make(tmp_path, library, "256m", "512m")
    driver = start(hip, share)
    for device, limit in ((0, 256 * MIB), (1, 512 * MIB)):
        driver.ask(f"device {device}")
        code, free, total, device_total, properties = driver.numbers("info")
        assert (code, total, device_total, properties) == (0, limit, limit, limit)
        assert free == limit - share.counted(device)
        assert driver.take("hipMalloc", 64 * MIB)[0] == 0
        assert share.counted(device) >= 64 * MIB
        assert driver.numbers("info")[1] == limit - share.counted(device)
        assert driver.take("hipMallocManaged", 64 * MIB)[0] == 0
        assert driver.numbers("info")[1] == limit - share.counted(device)


@pytest.mark.parametrize(
    "name", ["hipGetDeviceProperties", "hipGetDevicePropertiesR0000", "hipGetDevicePropertiesR0600"]
)
def test_reports_by_every_symbol_of_the_properties(
    name: str, hip: Runtime, library, tmp_path, start
) -> None:
    driver = start(hip, Share.make(tmp_path, library, "256m", "512m"))
    for device, limit in ((0, 256 * MIB), (1, 512 * MIB)):
        driver.ask(f"device {device}")
        answer = driver.ask(f"properties {name}")
        if answer == ["absent"]:
            assert hip.suite in {"bookworm", "trixie"}, "versioned names came with HIP 6"
            return
        assert answer == ["0", str(limit)]


def test_reports_of_rocr(trixie: Runtime, library, tmp_path, start) -> None:
    driver = start(trixie, Share.make(tmp_path, library, "256m", "512m"))
    for device, limit in ((0, 256 * MIB), (1, 512 * MIB)):
        driver.ask(f"device {device}")
        driver.take(POOL, MIB)
        assert driver.numbers("hsa") == [0, limit, limit, limit, limit, limit - MIB]


def test_reports_never_more_than_the_card_has(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "1g")
    driver = start(hip, share, STANDIN_GPUS="1", STANDIN_VRAM_MIB="300")
    code, _free, total, device_total, properties = driver.numbers("info")
    assert (code, total, device_total, properties) == (0, *[300 * MIB] * 3)
    assert driver.take(POOL, 100 * MIB)[0] == 0
    # HIP 5.2 knows of no memory but its own; the others ask the card.
    if hip.suite != "bookworm":
        assert driver.numbers("info")[1] == 300 * MIB - share.allocated()


def test_other_processes_show_in_what_is_left(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m")
    first, second = (start(hip, share, STANDIN_GPUS="1") for _ in range(2))
    second.ask("info")
    assert first.take("hipMalloc", 100 * MIB)[0] == 0
    assert second.numbers("info")[1] == 256 * MIB - share.counted()


# ---- which GPU ----


@pytest.mark.parametrize("entry", ["hipMalloc", "hipMallocManaged", "hipMallocAsync"])
def test_visible_devices_charges_the_right_gpu(
    entry: str, hip: Runtime, library, tmp_path, start
) -> None:
    """HIP's only device is ROCr's second."""
    share = Share.make(tmp_path, library, "1g", "256m")
    driver = start(hip, share, HIP_VISIBLE_DEVICES="1")
    code, _, total, *_ = driver.numbers("info")
    assert (code, total) == (0, 256 * MIB)
    base = share.counted(0)
    assert driver.take(entry, 100 * MIB)[0] == 0
    assert share.counted(1) >= 100 * MIB
    assert share.counted(0) == base
    assert driver.take(entry, 512 * MIB)[0] == OUT_OF_MEMORY


def test_visible_devices_in_another_order(trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "1g", "256m")
    driver = start(trixie, share, HIP_VISIBLE_DEVICES="1,0")
    for ordinal, device in ((0, 1), (1, 0)):
        driver.ask(f"device {ordinal}")
        assert driver.take("hipMallocManaged", 64 * MIB)[0] == 0
        assert share.counted(device) == 64 * MIB


def test_set_device(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    for device in (1, 0):
        driver.ask(f"device {device}")
        for entry in ("hipMalloc", "hipMallocManaged", "hipMallocFromPoolAsync"):
            before = share.counted(device), share.counted(1 - device)
            assert driver.take(entry, 32 * MIB)[0] == 0
            assert share.counted(device) - before[0] >= 32 * MIB
            assert share.counted(1 - device) == before[1]


@pytest.mark.parametrize("entry", ["hipMalloc", "hipMallocManaged", "hipMallocFromPoolAsync"])
@pytest.mark.parametrize("order", ["0,1", "1,0"])
def test_set_device_in_threads(
    order: str, entry: str, hip: Runtime, library, tmp_path, start
) -> None:
    """Two threads at once, each on a device of its own; the main thread stays on its own."""
    limits = 1024 * MIB, 256 * MIB
    share = Share.make(tmp_path, library, *limits)
    driver = start(hip, share, HIP_VISIBLE_DEVICES=order)
    agents = [int(number) for number in order.split(",")]  # of ordinals 0 and 1
    for ordinal in (1, 0):
        driver.ask(f"device {ordinal}")
        assert driver.numbers("info")[2] == limits[agents[ordinal]]
    before = share.counted(0), share.counted(1)
    assert driver.numbers(f"threads {entry} {96 * MIB}")[:2] == [0, 0]
    for device in (0, 1):
        assert 96 * MIB <= share.counted(device) - before[device] <= 96 * MIB + SLACK
    before = share.counted(agents[0]), share.counted(agents[1])
    assert driver.take("hipMalloc", MIB)[0] == 0
    assert share.counted(agents[0]) > before[0]
    assert share.counted(agents[1]) == before[1]
    # Too much for the smaller of the two, whichever thread has it. Not more than the smaller
    # limit: HIP 5.2 measures all managed memory against its first device.
    answers = driver.numbers(f"threads {entry} {176 * MIB}")
    assert [answers[agents.index(device)] for device in (0, 1)] == [0, OUT_OF_MEMORY]


@pytest.mark.parametrize("entry", ["hipMalloc", "hipMallocManaged", "hipMallocFromPoolAsync"])
def test_peer_access_charges_the_owner_only(
    entry: str, hip: Runtime, library, tmp_path, start
) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    for device in (1, 0):
        driver.ask(f"device {device}")
        assert driver.numbers(f"peer {1 - device}") == [0]
        assert driver.numbers("info")[0] == 0
    for device in (0, 1):
        driver.ask(f"device {device}")
        before = share.counted(device), share.counted(1 - device)
        code, number = driver.take(entry, 64 * MIB)
        assert code == 0
        assert 64 * MIB <= share.counted(device) - before[0] <= 64 * MIB + SLACK
        assert share.counted(1 - device) == before[1]
        assert driver.give(number) == 0
        assert share.counted(1 - device) == before[1]


# HIP 5 does not map without a GPU.
@pytest.mark.applies(
    when=lambda hip, entry, **_: (
        entry != "hipMemCreate+hipMemMap" or hip not in {"bookworm", "trixie"}
    )
)
@pytest.mark.parametrize("entry", ["hipMallocFromPoolAsync", "hipMemCreate+hipMemMap"])
def test_access_given_to_a_peer_charges_the_owner_only(
    entry: str, hip: Runtime, library, tmp_path, start
) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    for device in (1, 0):
        driver.ask(f"device {device}")
        assert driver.numbers("info")[0] == 0
    before = share.counted(0), share.counted(1)
    code, number = driver.take(entry, 64 * MIB)
    assert code == 0
    assert driver.numbers(f"access {number} 1") == [0]
    assert 64 * MIB <= share.counted(0) - before[0] <= 64 * MIB + SLACK
    assert share.counted(1) == before[1]
    assert driver.give(number) == 0
    for device in (0, 1):
        assert share.counted(device) == share.allocated(device) <= before[device] + SLACK


def test_copy_between_peers_charges_nobody_twice(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    numbers = {}
    for device in (1, 0):
        driver.ask(f"device {device}")
        code, numbers[device] = driver.take("hipMalloc", 64 * MIB)
        assert code == 0
    for device in (1, 0):
        driver.ask(f"device {device}")
        assert driver.numbers(f"copy {numbers[0]} {numbers[1]} {MIB}") == [0]
        assert driver.numbers(f"peer {1 - device}") == [0]
    assert driver.numbers(f"copy {numbers[0]} {numbers[1]} {MIB}") == [0]
    for device in (0, 1):
        # HIP's own memory for copies is counted as the stand-in has it, and is not the copy's size.
        assert 64 * MIB <= share.counted(device) == share.allocated(device) <= 64 * MIB + SLACK
        assert driver.give(numbers[device]) == 0
        # A thread of HIP 5.7 may still hold the last copy's memory for a moment.
        end = time.monotonic() + 10
        while share.allocated(device) > SLACK and time.monotonic() < end:
            time.sleep(0.01)
        assert share.counted(device) == share.allocated(device) <= SLACK


def test_context(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    assert driver.numbers("context 1") == [0]
    for entry in ("hipMalloc", "hipMallocManaged"):
        before = share.counted(0), share.counted(1)
        assert driver.take(entry, 32 * MIB)[0] == 0
        assert share.counted(1) - before[1] >= 32 * MIB
        assert share.counted(0) == before[0]


def test_pool_of_another_device(hip: Runtime, library, tmp_path, start) -> None:
    """What backs the pool pays, not the current device."""
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    driver.ask("device 0")
    assert driver.numbers("info")[0] == 0
    driver.ask("pool 1")
    before = share.counted(1)
    assert driver.take("hipMallocFromPoolAsync", 64 * MIB)[0] == 0
    assert share.counted(1) - before >= 64 * MIB
    assert share.counted(0) == share.allocated(0) < 64 * MIB


def test_no_gpu_is_told_as_ever(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m")
    with_library = start(hip, share, STANDIN_GPUS="0")
    without = start(hip, share, STANDIN_GPUS="0", LD_AUDIT="")
    for entry in ("hipMalloc", "hipMallocManaged", "hipMallocArray", "hipMallocAsync"):
        code = without.take(entry, MIB)[0]
        assert code != 0
        assert with_library.take(entry, MIB)[0] == code


def test_partitions_at_one_address(hip: Runtime, library, tmp_path, start) -> None:
    """Partitions of one GPU share its PCI address, so that HIP_VISIBLE_DEVICES hides which is
    which; which agent HIP asks for its memory tells."""
    share = Share.make(tmp_path, library, "256m", "512m", "1g", "2g")
    extra = {"STANDIN_PARTITIONS": "1", "STANDIN_GPUS": "4", "HIP_VISIBLE_DEVICES": "3,1"}
    driver = start(hip, share, **extra)
    for ordinal, device in ((0, 3), (1, 1)):
        driver.ask(f"device {ordinal}")
        code, _ = driver.take("hipMallocManaged", 64 * MIB)
        if hip.suite == "bookworm":  # asks no agent; partitions came with HIP 6
            assert code == OUT_OF_MEMORY
            continue
        assert code == 0
        assert share.counted(device) >= 64 * MIB
        assert share.counted(3 if device == 1 else 1) in {0, 64 * MIB}


# ---- more memory than the card has ----


@pytest.mark.parametrize("value", ["1", "true", "TRUE"])
def test_oversubscribed(value: str, hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "1g")
    extra = {"STANDIN_GPUS": "1", "STANDIN_VRAM_MIB": "300", "HIP_OVERSUBSCRIBE": value}
    driver = start(hip, share, **extra)
    code, free, total, device_total, properties = driver.numbers("info")
    assert (code, total, device_total, properties) == (0, *[1024 * MIB] * 3)
    assert free == 1024 * MIB - share.counted()
    base = share.counted()
    code, number = driver.take("hipMalloc", 600 * MIB)
    assert code == 0
    assert share.counted() == base + 600 * MIB
    assert share.allocated() < 300 * MIB, "it is not in the card's own memory"
    assert driver.take("hipMalloc", 600 * MIB)[0] == OUT_OF_MEMORY
    assert driver.give(number) == 0
    assert share.counted() == base


@pytest.mark.parametrize("value", ["0", "false", "", "2", "yes"])
def test_not_oversubscribed(value: str, trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "1g")
    extra = {"STANDIN_GPUS": "1", "STANDIN_VRAM_MIB": "300", "HIP_OVERSUBSCRIBE": value}
    driver = start(trixie, share, **extra)
    assert driver.take("hipMalloc", 600 * MIB)[0] == OUT_OF_MEMORY


def test_device_reset(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    assert driver.take("hipMalloc", 64 * MIB)[0] == 0
    assert driver.take("hipMallocManaged", 64 * MIB)[0] == 0
    assert driver.numbers("reset") == [0]
    assert share.counted(0) == share.allocated(0)


def test_reset_of_one_context_leaves_the_other(hip: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m", "256m")
    driver = start(hip, share)
    for device in (0, 1):
        driver.ask(f"device {device}")
        assert driver.take("hipMalloc", 64 * MIB)[0] == 0
        assert driver.take("hipMallocManaged", 64 * MIB)[0] == 0
    assert driver.numbers("reset 0") == [0]
    assert share.counted(0) == share.allocated(0)
    assert share.counted(1) == share.allocated(1) + 64 * MIB


# ---- the priority of a task ----

PRIORITIES = {"0": "2", "00": "2", "1": "0", "7": "0"}  # HSA: low 0, normal 1, high 2


@pytest.mark.parametrize("value", [*PRIORITIES, "", "high", "-1", "1x"])
def test_task_priority(value: str, trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, "256m")
    driver = start(trixie, share, STANDIN_GPUS="1", AMD_TASK_PRIORITY=value)
    assert driver.take("hipMallocAsync", MIB)[0] == 0  # makes a stream, and its queue
    calls = share.calls.read_text().splitlines()
    assert "hsa_queue_create" in calls
    set_to = {line.split()[1] for line in calls if line.startswith("hsa_amd_queue_set_priority")}
    if value in PRIORITIES:
        assert set_to == {PRIORITIES[value]}
        assert calls[calls.index("hsa_queue_create") + 1].startswith("hsa_amd_queue_set_priority")
    else:
        assert "2" not in set_to
        assert "0" not in set_to


# ---- what is said ----


NAMES = ["ERROR", "WARN", "INFO", "DEBUG"]


@pytest.mark.parametrize(
    ("level", "expected"), [("0", 0), ("1", 1), ("2", 2), ("3", 3), ("4", 4), ("5", 2), ("x", 2)]
)
def test_log_levels(level: str, expected: int, trixie, library, tmp_path, start) -> None:
    """An error (a malformed limit), a warning (a refusal), what an ended process held, details."""
    share = Share.make(tmp_path, library, "256m", "many")
    before = start(trixie, share, LIBHIP_LOG_LEVEL="0")
    assert before.take(POOL, 100 * MIB)[0] == 0
    before.process.kill()
    before.process.wait()
    driver = start(trixie, share, LIBHIP_LOG_LEVEL=level)
    driver.take(POOL, 512 * MIB)
    driver.take(POOL, 100 * MIB)
    driver.take(POOL, 200 * MIB)
    text = driver.finish()
    seen = [name for name in NAMES if f"[amvgpu {name} pid " in text]
    assert seen == NAMES[:expected]
