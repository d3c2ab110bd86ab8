"""All processes of a container share one account, however they come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import need
from tests.libamvgpu import region
from tests.libamvgpu.runtime import (
    HSA_OUT_OF_RESOURCES,
    MIB,
    OUT_OF_MEMORY,
    Driver,
    Runtime,
    Share,
)

# MOST and LESS do not both fit. Of 256 MiB, HIP from 5.7 on gives 192 in one piece (measured).
LIMIT, MOST, LESS = 256 * MIB, 160 * MIB, 100 * MIB
POOL = "hsa_amd_memory_pool_allocate"


@pytest.fixture
def share(tmp_path, library) -> Share:
    return Share.make(tmp_path, library, LIMIT)


def kill(driver: Driver) -> None:
    driver.process.send_signal(signal.SIGKILL)
    driver.process.wait()


def test_two_processes_share_a_limit(trixie: Runtime, share: Share, start) -> None:
    first, second = start(trixie, share), start(trixie, share)
    code, number = first.take("hipMalloc", MOST)
    assert code == 0
    assert second.take("hipMalloc", LESS)[0] == OUT_OF_MEMORY
    assert first.give(number) == 0
    assert second.take("hipMalloc", LESS)[0] == 0
    assert share.counted() == LESS


def test_killed_process_gives_back_at_the_next_need(trixie: Runtime, share: Share, start) -> None:
    first, second = start(trixie, share), start(trixie, share)
    assert first.take("hipMalloc", MOST)[0] == 0
    assert second.take(POOL, MIB)[0] == 0  # is up and attached
    kill(first)
    began = time.monotonic()
    assert second.take("hipMalloc", MOST)[0] == 0
    assert time.monotonic() - began < 0.020
    assert share.counted() == MOST + MIB


def test_killed_process_shows_as_free(trixie: Runtime, share: Share, start) -> None:
    first, second = start(trixie, share), start(trixie, share)
    assert first.take("hipMalloc", MOST)[0] == 0
    assert second.take(POOL, MIB)[0] == 0
    assert second.numbers("info")[1] == LIMIT - MOST - MIB
    kill(first)
    time.sleep(0.02)
    assert second.numbers("info")[1] == LIMIT - MIB


def test_zombie_holds_nothing(trixie: Runtime, share: Share, start) -> None:
    """Killed and not yet waited for: the kernel has taken its memory back."""
    first, second = start(trixie, share), start(trixie, share)
    assert first.take("hipMalloc", MOST)[0] == 0
    assert second.take(POOL, MIB)[0] == 0
    first.process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, first.process.pid, os.WEXITED | os.WNOWAIT)
    assert second.take("hipMalloc", MOST)[0] == 0


@pytest.mark.parametrize("way", ["fork", "clone"])
def test_child_has_its_own_account(way: str, trixie: Runtime, share: Share, start) -> None:
    driver, other = start(trixie, share), start(trixie, share)
    assert other.take(POOL, MIB)[0] == 0
    code, number = driver.take(POOL, LESS)
    assert code == 0
    assert driver.numbers(way) == [0]  # from here on the child speaks
    # What the parent holds counts, and the child cannot give it back.
    assert driver.take(POOL, MOST)[0] == HSA_OUT_OF_RESOURCES
    driver.give(number)
    assert share.counted() == LESS + MIB
    assert driver.take(POOL, 50 * MIB)[0] == 0
    assert sorted(filter(None, region.used(share.usage, 0))) == [MIB, 50 * MIB, LESS]
    assert len(region.pids(share.usage)) == 3
    # When both are gone, all of it is there again.
    driver.finish()
    assert other.take(POOL, MOST)[0] == 0


def test_many_forked_children(trixie: Runtime, share: Share, start) -> None:
    """The slots of children that ended are used again."""
    for _ in range(3):
        driver = start(trixie, share)
        for _ in range(5):
            assert driver.take(POOL, MIB)[0] == 0
            driver.ask("fork")
        driver.finish()
    last = start(trixie, share)
    assert last.take(POOL, LIMIT)[0] == 0
    assert share.counted() == LIMIT
    assert len(region.pids(share.usage)) == 1


def test_vfork_leaves_the_parent_as_it_was(trixie: Runtime, share: Share, start) -> None:
    driver, other = start(trixie, share), start(trixie, share)
    assert driver.take(POOL, MOST)[0] == 0
    assert driver.numbers("vfork /bin/true") == [0]
    assert other.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES
    assert driver.give(0) == 0
    assert share.counted() == 0


def test_exec_gives_back(trixie: Runtime, share: Share, start) -> None:
    """The process goes on under the same number, its memory does not."""
    driver, other = start(trixie, share), start(trixie, share)
    assert other.take(POOL, MIB)[0] == 0
    assert driver.take(POOL, MOST)[0] == 0
    driver.process.stdin.write("exec\n")
    driver.process.stdin.flush()
    assert driver.take(POOL, MOST)[0] == 0
    assert share.counted() == MOST + MIB
    assert other.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES


def test_exec_of_something_else_gives_back(trixie: Runtime, share: Share, start) -> None:
    driver, other = start(trixie, share), start(trixie, share)
    assert other.take(POOL, MIB)[0] == 0
    assert driver.take(POOL, MOST)[0] == 0
    driver.process.stdin.write("become /bin/sleep\n")
    driver.process.stdin.flush()
    while b"sleep" not in Path(f"/proc/{driver.process.pid}/cmdline").read_bytes():
        time.sleep(0.001)
    assert other.take(POOL, MOST)[0] == 0
    assert driver.process.poll() is None


def test_daemon_that_closes_all_files_keeps_what_it_holds(
    trixie: Runtime, share: Share, start
) -> None:
    """The kernel drops the lock on its slot, but it lives and maps the region."""
    driver, other = start(trixie, share), start(trixie, share)
    assert other.take(POOL, MIB)[0] == 0
    assert driver.take(POOL, MOST)[0] == 0
    assert driver.numbers("close") == [0]
    assert other.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES
    assert driver.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES  # opens the region anew
    kill(driver)
    assert other.take(POOL, MOST)[0] == 0


def test_stopped_process_keeps_what_it_holds(trixie: Runtime, share: Share, start) -> None:
    driver, other = start(trixie, share), start(trixie, share)
    assert other.take(POOL, MIB)[0] == 0
    assert driver.take(POOL, MOST)[0] == 0
    driver.process.send_signal(signal.SIGSTOP)
    assert other.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES


# ---- nested PID namespaces: numbers mean nothing across them ----

NESTED = {
    "own-proc": ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"],
    "outer-proc": ["unshare", "--pid", "--fork", "--kill-child"],
}


@pytest.fixture(params=NESTED)
def nested(request, trixie: Runtime, share: Share):
    prefix = NESTED[request.param]
    need.program("unshare")
    if os.geteuid() != 0:
        prefix = [prefix[0], "--map-root-user", *prefix[1:]]
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
        need.lacking("a PID namespace cannot be made here")
    environment = share.environment()
    # unshare itself is not of the share: it must not be the PID 1 whose environment is read.
    command = [*prefix, "env", *(f"{k}={v}" for k, v in environment.items())]
    with Driver([*command, *trixie.loader(), trixie.driver()], os.environ) as driver:
        yield driver


def test_outer_spares_the_living_inner(nested: Driver, trixie, share, start) -> None:
    outer = start(trixie, share)
    assert outer.take(POOL, MIB)[0] == 0
    assert nested.take(POOL, MOST)[0] == 0
    assert outer.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES
    assert share.counted() == MOST + MIB
    kill(nested)
    time.sleep(0.1)  # unshare's --kill-child ends the process inside
    began = time.monotonic()
    assert outer.take(POOL, MOST)[0] == 0
    assert time.monotonic() - began < 0.020


def test_inner_spares_the_living_outer(nested: Driver, trixie, share, start) -> None:
    outer = start(trixie, share)
    assert outer.take(POOL, MOST)[0] == 0
    assert nested.take(POOL, LESS)[0] == HSA_OUT_OF_RESOURCES
    assert share.counted() == MOST
    kill(outer)
    assert nested.take(POOL, MOST)[0] == 0
