"""Memory that one process obtained and another uses is counted once, for who obtained it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.libamvgpu.entry_points import IMPORTS, Import
from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Driver,
    Runtime,
    Share,
)

if TYPE_CHECKING:
    from pathlib import Path

LIMIT, SHARED = 256 * MIB, 64 * MIB
NOT_SUPPORTED = 801  # hipErrorNotSupported
NO_POINTER = "(nil)"
PATTERN = 0x5A
POOL = "hsa_amd_memory_pool_allocate"

each_import = pytest.mark.parametrize("case", IMPORTS, ids=lambda case: case.name)
carried_out = pytest.mark.applies(when=lambda hip, case, **_: hip not in case.absent | case.hollow)
not_carried_out = pytest.mark.applies(when=lambda hip, case, **_: hip in case.absent | case.hollow)


@pytest.fixture
def share(tmp_path: Path, library: Path) -> Share:
    return Share.make(tmp_path, library, LIMIT)


def running(hip: Runtime, share: Share, start) -> Driver:
    """A program that has whatever HIP takes for itself and its streams."""
    driver = start(hip, share, STANDIN_GPUS="1")
    assert driver.numbers("info")[0] == 0
    code, number = driver.take("hipMallocAsync", MIB)
    assert code == 0
    assert driver.give(number) == 0
    return driver


def reached(case: Import, share: Share) -> int:
    """How often ROCr was asked to import."""
    calls = share.calls.read_text().split() if share.calls.exists() else []
    return calls.count(case.reaches)


def offer(case: Import, owner: Driver) -> tuple[int, str]:
    """Memory with a pattern in it: its number and the word that lets another import it."""
    code, number = owner.take(case.owner, SHARED)
    assert code == 0
    assert owner.numbers(f"poke {number} {PATTERN}") == [0]
    code, word = owner.ask(f"offer {case.name} {number}")
    assert code == "0"
    return number, word


@carried_out
@each_import
def test_owner_alone_pays(case: Import, hip: Runtime, share: Share, start) -> None:
    owner, guest = running(hip, share, start), running(hip, share, start)
    before = share.counted()
    number, word = offer(case, owner)
    held = share.counted()
    assert held == share.allocated() == before + SHARED

    answer = guest.ask(f"import {case.name} {word} {SHARED}")
    assert answer[0] == "0"
    assert reached(case, share) == 1
    assert guest.numbers(f"peek {answer[1]}") == [PATTERN]
    assert share.counted() == share.allocated() == held
    assert guest.numbers("info")[1] == LIMIT - held
    assert guest.take(POOL, LIMIT - held + 4096)[0] == HSA_OUT_OF_RESOURCES
    assert guest.take("hipMalloc", LIMIT - held + MIB)[0] == OUT_OF_MEMORY

    assert guest.give(int(answer[1])) == 0
    assert share.counted() == share.allocated() == held
    assert owner.give(number) == 0
    assert share.counted() == share.allocated() == before


@carried_out
@each_import
def test_guest_that_stays_gives_nothing_back(
    case: Import, hip: Runtime, share: Share, start
) -> None:
    """The memory is counted until its owner gives it back, as the README says."""
    owner, guest = running(hip, share, start), running(hip, share, start)
    before = share.counted()
    number, word = offer(case, owner)
    answer = guest.ask(f"import {case.name} {word} {SHARED}")
    assert owner.give(number) == 0
    assert share.counted() == share.allocated() == before
    assert guest.give(int(answer[1])) == 0
    assert share.counted() == share.allocated() == before
    assert guest.take(POOL, LIMIT - before)[0] == 0


@carried_out
@each_import
def test_within_one_process(case: Import, hip: Runtime, share: Share, start) -> None:
    """Imported or refused by HIP: it counts once."""
    driver = running(hip, share, start)
    before = share.counted()
    number, word = offer(case, driver)
    answer = driver.ask(f"import {case.name} {word} {SHARED}")
    assert share.counted() == share.allocated() == before + SHARED
    if answer[0] == "0":
        assert driver.numbers(f"peek {answer[1]}") == [PATTERN]
        assert driver.give(int(answer[1])) == 0
        assert share.counted() == share.allocated() == before + SHARED
    assert driver.give(number) == 0
    assert share.counted() == share.allocated() == before


@not_carried_out
@each_import
def test_what_hip_does_not_carry_out(case: Import, hip: Runtime, share: Share, start) -> None:
    """An error, or success and no memory, before ROCr hears of it."""
    owner, guest = running(hip, share, start), running(hip, share, start)
    answer = owner.ask(f"take {case.owner} {SHARED}")
    if case.name.startswith("hsa_"):
        assert answer == ["absent"], "no header of this ROCr declares it"
        return
    held = share.counted()
    word = owner.ask(f"offer {case.name} 1")[1]
    if hip.suite in case.absent:
        assert int(answer[0]) == NOT_SUPPORTED
        assert guest.take("hipMalloc", SHARED)[0] == 0
        held = share.counted()
        answer = guest.ask(f"import {case.name} {word} {SHARED}")
        assert int(answer[0]) == NOT_SUPPORTED
    else:
        answer = guest.ask(f"import {case.name} {word} {SHARED}")
        assert answer[0] == "0"
        assert answer[2] == NO_POINTER
    assert reached(case, share) == 0
    assert share.counted() == share.allocated() == held
