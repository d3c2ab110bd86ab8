"""The usage region: its layout, its beginning, and refusing what is not one."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.libamvgpu import region
from tests.libamvgpu.runtime import HSA_OUT_OF_RESOURCES, MIB, Driver, Runtime, Share

LIMIT = 256 * MIB
POOL = "hsa_amd_memory_pool_allocate"
NO_LIMIT = (1 << 64) - 1


@pytest.fixture
def share(tmp_path, library) -> Share:
    return Share.make(tmp_path, library, LIMIT)


def test_size_by_hand() -> None:
    """One page, 1024 slots of 16 bytes, 1024 numbers of 8 bytes per device."""
    assert region.region_size(1) == 4096 + 16384 + 8192 == 28 * 1024
    assert region.region_size(64) == 4096 + 16384 + 524288


def test_layout_as_documented(trixie: Runtime, share: Share, start) -> None:
    driver = start(trixie, share, STANDIN_GPUS="1")
    assert driver.take(POOL, MIB)[0] == 0
    text = share.usage.read_bytes()
    assert text[:8] == region.MAGIC
    version, devices, slots, high_water, contended = struct.unpack_from("<5I", text, 8)
    assert (version, devices, slots, high_water, contended) == (1, 1, 1024, 1, 0)
    limits = struct.unpack_from("<64Q", text, 32)
    assert limits == (LIMIT, *[NO_LIMIT] * 63)
    started, pid, space = struct.unpack_from("<QII", text, 4096)
    assert pid == driver.process.pid
    proc = Path(f"/proc/{pid}")
    assert started == int((proc / "stat").read_text().rsplit(")", 1)[1].split()[19])
    assert space == (proc / "ns/pid").stat().st_ino
    assert region.used(share.usage, 0)[0] == MIB


def test_lock_tells_who_lives(trixie: Runtime, share: Share, start) -> None:
    """As a monitor outside asks: the lock on a slot's first byte is held while its process is."""
    driver = start(trixie, share, STANDIN_GPUS="1")
    assert driver.take(POOL, MIB)[0] == 0
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 4096, 1, 0)
    with share.usage.open("r+b") as file:
        held = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
        assert held[0] == fcntl.F_WRLCK
        assert held[4] == driver.process.pid
        driver.process.kill()
        driver.process.wait()
        free = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
        assert free[0] == fcntl.F_UNLCK


def test_many_begin_at_once(trixie: Runtime, share: Share, start) -> None:
    drivers = [start(trixie, share, STANDIN_GPUS="1") for _ in range(12)]
    for driver in drivers:  # all at once, answers later
        driver.process.stdin.write(f"take {POOL} {MIB}\n")
        driver.process.stdin.flush()
    for driver in drivers:
        assert driver.process.stdout.readline().startswith("0 ")
    assert sorted(region.pids(share.usage)) == sorted(d.process.pid for d in drivers)
    assert share.counted() == 12 * MIB


def damaged(share: Share, offset: int, content: bytes) -> None:
    with share.usage.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def lay_valid(share: Share) -> None:
    """A region as its first process leaves it."""
    head = region.MAGIC + struct.pack("<6I", 1, 1, 1024, 0, 0, 0) + struct.pack("<64Q", *[0] * 64)
    damaged(share, 0, head)


SPOILED = {
    "missing folder": lambda s: (s.usage.unlink(), s.folder.joinpath("x").touch()),
    "folder": lambda s: (s.usage.unlink(), s.usage.mkdir()),
    "link": lambda s: (s.usage.rename(s.folder / "else"), s.usage.symlink_to(s.folder / "else")),
    "fifo": lambda s: (s.usage.unlink(), os.mkfifo(s.usage)),
    "empty": lambda s: os.truncate(s.usage, 0),
    "truncated": lambda s: os.truncate(s.usage, 8192),
    "odd size": lambda s: os.truncate(s.usage, region.region_size(1) + 1),
    "extended": lambda s: os.truncate(s.usage, 1 << 30),
    "for too many": lambda s: os.truncate(s.usage, region.region_size(65)),
    "other version": lambda s: (lay_valid(s), damaged(s, 8, struct.pack("<I", 2))),
    "other magic": lambda s: (lay_valid(s), damaged(s, 0, b"X")),
    "other devices": lambda s: (lay_valid(s), damaged(s, 12, struct.pack("<I", 2))),
    "other slots": lambda s: (lay_valid(s), damaged(s, 16, struct.pack("<I", 1 << 30))),
    "no magic, but content": lambda s: damaged(s, 20000, b"\1"),
}


@pytest.mark.parametrize("spoil", SPOILED)
def test_what_is_no_region_denies(spoil: str, trixie: Runtime, share: Share, start) -> None:
    SPOILED[spoil](share)
    extra = {}
    if spoil == "missing folder":
        extra["HIP_DEVICE_MEMORY_SHARED_CACHE"] = str(share.folder / "x" / "usage")
    driver = start(trixie, share, STANDIN_GPUS="1", **extra)
    for _ in range(3):
        assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    assert driver.take("hipMallocManaged", MIB)[0] == 2
    assert driver.numbers("info")[1] == 0
    text = driver.finish()
    assert share.allocated() == 0
    said = [line for line in text.splitlines() if "usage region" in line]
    assert len(said) == 1, "said once"
    assert "expected" in said[0]
    assert "found" in said[0]


def test_read_only_denies(trixie: Runtime, share: Share, tmp_path) -> None:
    environment = share.environment({"STANDIN_GPUS": "1"})
    command = ["unshare", "--mount", "--map-root-user", "sh", "-c"]
    mount = f"mount --bind {share.usage} {share.usage} && mount -o remount,bind,ro {share.usage}"
    inner = [*trixie.loader(), trixie.driver()]
    with Driver([*command, f'{mount} && exec "$@"', "sh", *inner], environment) as driver:
        assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
        assert "read-only" in driver.finish()


@pytest.mark.parametrize("spoil", ["empty", "other version", "folder"])
def test_fail_open_is_a_choice(spoil: str, trixie: Runtime, share: Share, start) -> None:
    SPOILED[spoil](share)
    driver = start(trixie, share, STANDIN_GPUS="1", LIBAMVGPU_FAIL_OPEN="1")
    assert driver.take(POOL, MIB)[0] == 0
    assert driver.take(POOL, 2 * LIMIT)[0] == 0
    assert "NOT limited" in driver.finish()


@pytest.mark.parametrize("value", ["0", "true", "", "yes", "11"])
def test_nothing_else_fails_open(value: str, trixie: Runtime, share: Share, start) -> None:
    SPOILED["empty"](share)
    driver = start(trixie, share, STANDIN_GPUS="1", LIBAMVGPU_FAIL_OPEN=value)
    assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES


def test_made_where_none_is(trixie: Runtime, share: Share, start) -> None:
    """Without the mount: the first process lays it, for all users of the container."""
    share.usage.unlink()
    first, second = start(trixie, share), start(trixie, share)
    assert first.take(POOL, 160 * MIB)[0] == 0
    assert share.usage.stat().st_size == region.region_size(64)
    assert share.usage.stat().st_mode & 0o777 == 0o666
    assert second.take(POOL, 160 * MIB)[0] == HSA_OUT_OF_RESOURCES
    assert [p.name for p in share.folder.glob("usage*")] == ["usage"]


def test_more_gpus_than_the_region_is_for(trixie: Runtime, library, tmp_path, start) -> None:
    share = Share.make(tmp_path, library, LIMIT)
    driver = start(trixie, share, HIP_DEVICE_MEMORY_LIMIT_1=str(LIMIT))
    driver.ask("device 1")
    assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    assert "room for device 1" in driver.finish()


def test_damage_while_in_use_denies(trixie: Runtime, share: Share, start) -> None:
    driver = start(trixie, share, STANDIN_GPUS="1")
    assert driver.take(POOL, MIB)[0] == 0
    damaged(share, 4096, bytes(16))  # its slot
    assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    assert "damaged" in driver.finish()


@pytest.mark.parametrize("size", [0, 4096, 8192])
def test_cut_short_while_in_use_ends_the_program(
    size: int, trixie: Runtime, share: Share, start
) -> None:
    """Its mapping has lost its pages: it gets no memory, and a new program is refused."""
    driver = start(trixie, share, STANDIN_GPUS="1")
    assert driver.take(POOL, MIB)[0] == 0
    os.truncate(share.usage, size)
    with pytest.raises(AssertionError, match=f"ended with {-signal.SIGBUS} "):
        driver.take(POOL, MIB)
    after = start(trixie, share, STANDIN_GPUS="1")
    assert after.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    assert share.allocated() == MIB, "nothing since"


@pytest.mark.parametrize("number", [NO_LIMIT, 1 << 63, LIMIT])
def test_numbers_of_others_cannot_make_room(number: int, trixie, share: Share, start) -> None:
    """A total that wraps around would look small."""
    other = start(trixie, share, STANDIN_GPUS="1")
    assert other.take(POOL, MIB)[0] == 0
    driver = start(trixie, share, STANDIN_GPUS="1")
    assert driver.take(POOL, MIB)[0] == 0
    damaged(share, 4096 + 16384, struct.pack("<Q", number))
    assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES


def test_full_of_the_living_denies(trixie: Runtime, share: Share, start) -> None:
    """1,024 slots whose locks are held, as by 1,024 processes."""
    lay_valid(share)
    damaged(share, 20, struct.pack("<I", 1024))
    damaged(share, 4096, struct.pack("<QII", 1, 99, 1) * 1024)
    driver = start(trixie, share, STANDIN_GPUS="1")
    with share.usage.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1024 * 16, 4096)
        assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    # All of them end at once.
    assert driver.take(POOL, MIB)[0] == 0
    assert region.pids(share.usage) == [driver.process.pid]
    assert "1024 live processes" in driver.finish()


def test_stopped_holder_of_the_lock_is_not_waited_for(trixie, share: Share, start) -> None:
    driver = start(trixie, share, STANDIN_GPUS="1")
    with share.usage.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        assert driver.take(POOL, MIB)[0] == HSA_OUT_OF_RESOURCES
    assert "stopped process" in driver.finish()


def test_inert_program_does_not_open_it(trixie: Runtime, share: Share) -> None:
    program = trixie.folder / "true"
    subprocess.run(
        ["cc", "-x", "c", "-o", program, "-"], input=b"int main(){return 0;}", check=True
    )
    subprocess.run([*trixie.loader(), program], env=share.environment(), check=True)
    assert share.usage.read_bytes() == bytes(region.region_size(1))
