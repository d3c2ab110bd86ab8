"""The root filesystems of Debian 11 to 13: the built file works on glibc 2.31 to 2.41."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests import debian, need
from tests.libamvgpu import region, runtime
from tests.libamvgpu.runtime import HSA_OUT_OF_RESOURCES, MIB, SOURCE, run

if TYPE_CHECKING:
    from pathlib import Path

GLIBC = {"bullseye": "2.31", "bookworm": "2.36", "trixie": "2.41"}
LIMIT, PART = 150 * MIB, 100 * MIB
MASK = "0:0-75"


@dataclass(frozen=True)
class Root:
    """A root filesystem, with the library, the stand-in and test programs bound to /mnt."""

    suite: str
    tree: Path
    shared: Path

    def run(self, *command: str, **extra: str) -> str:
        values = {
            "LD_AUDIT": "/mnt/libamvgpu.so",
            "HIP_DEVICE_MEMORY_LIMIT_0": str(LIMIT),
            "HIP_DEVICE_MEMORY_SHARED_CACHE": "/mnt/usage",
            "HSA_CU_MASK": MASK,
            "STANDIN_GPUS": "1",
            **extra,
        }
        entries = [f"{name}={value}" for name, value in values.items()]
        # env of the outer system sets the values; what chroot starts is the root's own.
        inner = ["env", "-i", *entries, "/usr/sbin/chroot", str(self.tree), *command]
        mounts = (
            f"mount --bind {self.shared} {self.tree}/mnt && mount -t proc none {self.tree}/proc"
        )
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "--pid",
                "--fork",
                "sh",
                "-c",
                f'{mounts} && exec "$@"',
                "sh",
                *inner,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=GLIBC)
def root(request, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Root:
    suite = request.param
    packages = ["libc6", "libc6-dev", "python3-minimal", "libpython3-stdlib"]
    tree = need.fetched(lambda: debian.tree(suite, *packages))
    need.fetched(runtime.headers)
    for folder in ("mnt", "proc"):
        (tree / folder).mkdir(exist_ok=True)
    probe = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "proc", "none", tree / "proc"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        need.lacking("mounts need root")
    shared = tmp_path_factory.mktemp(suite)
    # Built against the root's own libc, so that they run on it: --sysroot alone finds the
    # system's libc first.
    folder = tree / "usr/lib/x86_64-linux-gnu"
    own = [f"--sysroot={tree}", "-nodefaultlibs", f"-L{folder}", "-Wl,--as-needed"]
    libc = [folder / "libc.so.6", folder / "libc_nonshared.a", folder / "ld-linux-x86-64.so.2"]
    libc += [folder / name for name in ("libpthread.so.0", "libdl.so.2")]
    runtime.build_standin(shared, *own, after=[*libc, "-lgcc"])
    shutil.copy(library, shared)
    for name in ("copies", "environment"):
        source = SOURCE / "tests" / f"{name}.c"
        run(
            [
                "cc",
                "-w",
                "-D_GNU_SOURCE",
                f"-B{folder}",
                *own,
                "-o",
                shared / name,
                source,
                *libc,
                "-lgcc",
            ]
        )
    return Root(suite, tree, shared)


@pytest.fixture
def usage(root: Root) -> Path:
    return region.lay(root.shared / "usage", 1)


def test_is_the_glibc_that_is_meant(root: Root, usage: Path) -> None:
    text = "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))"
    assert root.run("/usr/bin/python3", "-c", text) == f"glibc {GLIBC[root.suite]}\n"


def test_counts(root: Root, usage: Path) -> None:
    standin = "/mnt/libhsa-runtime64.so.1"
    answer = root.run("/mnt/copies", str(PART), "1", standin, standin)
    assert answer.split() == ["0", str(HSA_OUT_OF_RESOURCES)]
    assert sum(region.used(usage, 0)) == PART
    again = root.run("/mnt/copies", str(PART), "1", standin)
    assert again.split() == ["0"], "the first process is gone"


def test_counts_for_its_own_python(root: Root, usage: Path) -> None:
    text = f"""
import ctypes
rocr = ctypes.CDLL("/mnt/libhsa-runtime64.so.1")
pointer = ctypes.c_void_p()
pool = ctypes.c_uint64(20)
size = ctypes.c_size_t({PART})
rocr.hsa_init()
print(*(rocr.hsa_amd_memory_pool_allocate(pool, size, 0, ctypes.byref(pointer)) for _ in "12"))
"""
    assert root.run("/usr/bin/python3", "-c", text).split() == ["0", str(HSA_OUT_OF_RESOURCES)]


def test_holds_the_environment(root: Root, usage: Path) -> None:
    answer = root.run(
        "/mnt/environment",
        *("set", "HSA_CU_MASK", "0:0-303", "get", "HSA_CU_MASK"),
        *("unset", "HSA_CU_MASK", "get", "HSA_CU_MASK", "clear", "get", "HSA_CU_MASK"),
    )
    assert answer.split() == [MASK] * 3


def test_stays_through_exec(root: Root, usage: Path) -> None:
    ways = ("execve", "posix_spawn", "execvp")
    for way in ways:
        # The program runs itself, with nothing in its environment and no arguments: no output,
        # and no complaint of ld.so either.
        assert root.run("/mnt/environment", way, "/mnt/environment", "ONLY=1") == ""
