"""Every entry point on every HIP: granted under the limit, refused over it, given back whole,
and charged to the right one of the GPUs there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.libamvgpu.entry_points import ARRAY, CASES, UNCOUNTED, Case
from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Driver,
    Runtime,
    Share,
)

LIMIT = 256 * MIB
UNDER = 112 * MIB
OVER = 512 * MIB  # more than the limit
REST = 160 * MIB  # less than the limit, more than is left when UNDER is held
# What HIP may take by itself at such a moment: the memory of streams, chunks of pools.
SLACK = 40 * MIB


INVALID_VALUE, NOT_SUPPORTED = 1, 801  # hipErrorInvalidValue, hipErrorNotSupported

# What the program sees of GPUs.
GPUS = {
    "two GPUs": {},
    "one GPU": {"STANDIN_GPUS": "1"},
    "second GPU": {"HIP_VISIBLE_DEVICES": "1"},
}
APUS = "APUs"


def machine(gpus: str, hip: Runtime) -> dict[str, str]:
    return hip.apu() if gpus == APUS else GPUS[gpus]


def refusals(case: Case) -> int:
    return HSA_OUT_OF_RESOURCES if case.name.startswith("hsa_") else OUT_OF_MEMORY


def charged(gpus: str, case: Case) -> int:
    """ROCr's number of the program's first device. HIP_VISIBLE_DEVICES is nothing to ROCr."""
    return int(gpus == "second GPU" and case.name.startswith("hip"))


def same_accounts(share: Share, case: Case, held: int, charged: int) -> None:
    """The library and the stand-in agree to the byte, but for managed memory."""
    for device in (0, 1):
        managed = 0 if case.standin else held * (device == charged)
        assert share.counted(device) == share.allocated(device) + managed


@pytest.fixture(scope="module")
def sessions():
    """One program per HIP for many cases: starting HIP takes most of the time."""
    running: dict[tuple[str, str], tuple[Driver, Share]] = {}
    yield running
    for driver, _ in running.values():
        driver.__exit__(None, None, None)


@pytest.fixture(params=[*GPUS, APUS])
def gpus(request) -> str:
    return request.param


@pytest.fixture
def session(request, hip: Runtime, gpus: str, library, tmp_path, sessions):
    """The program of this HIP, ended after a case that leaves memory or pools behind: HIP 5.2
    can hang in the second pool of a process."""
    if (hip.suite, gpus) not in sessions:
        share = Share.make(tmp_path, library, LIMIT, LIMIT)
        driver = Driver([*hip.loader(), hip.driver()], share.environment(machine(gpus, hip)))
        sessions[hip.suite, gpus] = (driver, share)
        assert driver.numbers("info")[0] == 0
    yield sessions[hip.suite, gpus]
    driver, share = sessions[hip.suite, gpus]
    pools = "Async" in request.node.name
    dirty = max(share.counted(0), share.counted(1)) > SLACK
    if pools or dirty or driver.process.poll() is not None:
        driver.__exit__(None, None, None)
        del sessions[hip.suite, gpus]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_entry_point(case: Case, hip: Runtime, gpus: str, session: tuple[Driver, Share]) -> None:
    driver, share = session
    device = charged(gpus, case)
    base, other = share.counted(device), share.counted(1 - device)
    same_accounts(share, case, 0, device)

    answer = driver.ask(f"take {case.name} {UNDER}")
    if hip.suite in case.absent:
        assert answer == ["absent"] or int(answer[0]) in {INVALID_VALUE, NOT_SUPPORTED}
        same_accounts(share, case, 0, device)
        return
    if gpus == APUS and hip.suite in case.fine:
        assert answer[0] == str(OUT_OF_MEMORY)
        same_accounts(share, case, 0, device)
        return
    assert answer[0] == "0"
    held = share.counted(device) - base
    assert (UNDER if case.held else 0) <= held <= (UNDER if case.held else 0) + SLACK
    same_accounts(share, case, UNDER, device)

    before = share.counted(device)
    assert driver.take(case.name, OVER)[0] == refusals(case)
    if case.silent:
        driver.take(case.name, REST)
    elif case.held:
        assert driver.take(case.name, REST)[0] == refusals(case)
    # The pools of HIP 7.2 keep the chunks that they got before one was refused.
    assert (
        before <= share.counted(device) <= (LIMIT if hip.suite in case.hoards else before + SLACK)
    )
    same_accounts(share, case, UNDER, device)

    assert driver.give(int(answer[1])) == 0
    driver.ask("trim")
    same_accounts(share, case, 0, device)
    if hip.suite not in case.kept | case.hoards:
        assert share.counted(device) <= base + SLACK
    assert share.counted(1 - device) == other


def address_space(driver: Driver) -> int:
    """Bytes of the program's address space, as the kernel counts them."""
    pages = Path(f"/proc/{driver.process.pid}/statm").read_text().split()[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("gpus", ["two GPUs"], indirect=True)
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.counted == ARRAY], ids=lambda case: case.name
)
def test_refused_array_leaves_no_host_memory(
    case: Case, hip: Runtime, session: tuple[Driver, Share]
) -> None:
    """HIP had put it there, and is made to give it back."""
    driver, _ = session
    driver.take(case.name, OVER)
    before = address_space(driver)
    for _ in range(4):
        assert driver.take(case.name, OVER)[0] != 0
    assert address_space(driver) < before + OVER


# The one that HIP 5.2 has is in test_entry_point.
@pytest.mark.applies(
    when=lambda hip, entry, **_: (hip, entry) != ("bookworm", "hipMipmappedArrayCreate")
)
@pytest.mark.parametrize("gpus", ["two GPUs"], indirect=True)
@pytest.mark.parametrize("size", [MIB, UNDER, OVER])
@pytest.mark.parametrize("entry", ["hipMallocMipmappedArray", "hipMipmappedArrayCreate"])
def test_mipmapped_arrays_are_not_supported(
    entry: str, size: int, hip: Runtime, session: tuple[Driver, Share]
) -> None:
    """Whatever the limit. HIP asks ROCr for nothing, and nothing is left charged."""
    driver, share = session
    before = [(share.counted(device), share.allocated(device)) for device in (0, 1)]
    assert driver.take(entry, size)[0] == NOT_SUPPORTED
    assert [(share.counted(device), share.allocated(device)) for device in (0, 1)] == before
    # All that there was before is there still.
    code, number = driver.take("hsa_amd_memory_pool_allocate", LIMIT - before[0][0])
    assert code == 0
    assert share.counted(0) == LIMIT
    assert driver.give(number) == 0


@pytest.mark.parametrize("gpus", ["two GPUs", APUS], indirect=True)
@pytest.mark.parametrize("case", UNCOUNTED, ids=lambda case: case.name)
def test_uncounted(case: Case, hip: Runtime, session: tuple[Driver, Share]) -> None:
    driver, share = session
    base = share.counted()
    answer = driver.ask(f"take {case.name} {OVER}")
    assert share.counted() == base
    if hip.suite in case.absent:
        assert answer == ["absent"]
    elif hip.suite in case.device:
        assert answer[0] == str(OUT_OF_MEMORY)
        code, number = driver.take(case.name, UNDER)
        assert code == 0
        assert share.counted() == share.allocated() == base + UNDER
        assert driver.give(number) == 0
    else:
        assert answer[0] == "0"
        assert hip.suite in case.kept or driver.give(int(answer[1])) == 0
    assert share.counted() == share.allocated() == base


@pytest.mark.parametrize("gpus", ["two GPUs"], indirect=True)
@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 4096, (1 << 64) - 1])
@pytest.mark.parametrize("entry", ["hipMalloc", "hipMallocManaged", "hsa_amd_memory_pool_allocate"])
def test_sizes_that_overflow(entry: str, size: int, session: tuple[Driver, Share]) -> None:
    driver, share = session
    base = share.counted()
    assert driver.take(entry, size)[0] in {OUT_OF_MEMORY, HSA_OUT_OF_RESOURCES}
    assert share.counted() == base
