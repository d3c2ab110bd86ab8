"""By whatever way a program finds a function, the call is counted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import need
from tests.libamvgpu.conftest import present
from tests.libamvgpu.runtime import MIB, OUT_OF_MEMORY, SOURCE, SUCCESS, Runtime, Share, run

LIMIT, UNDER, OVER = 256 * MIB, 64 * MIB, 512 * MIB
PROGRAM = SOURCE / "tests" / "calling.c"
COUNTED = f"{SUCCESS} {OUT_OF_MEMORY} {SUCCESS}"

LINKED = {
    "plt": ["-DWAY=0", "-Wl,-z,lazy"],
    "now": ["-DWAY=0", "-Wl,-z,now"],
    "no-plt": ["-DWAY=0", "-fno-plt"],
    "fixed-address": ["-DWAY=0", "-no-pie", "-fno-pie"],
    "data": ["-DWAY=1"],
    "data-fixed-address": ["-DWAY=1", "-no-pie", "-fno-pie"],
    "optimised": ["-DWAY=1", "-O2", "-fno-plt", "-Wl,-z,now"],
}
LOOKED_UP = [
    "dlsym",
    "dlvsym",
    "global",
    "default",
    "deepbind",
    "local",
    "noload",
    "dlmopen",
    "next",
    "hipGetProcAddress",
    "hipGetProcAddress_spt",
    "hipGetDriverEntryPoint",
    "hipGetDriverEntryPoint_spt",
]


def answer(command: list[str], share: Share) -> str:
    done = subprocess.run(
        command, env=share.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("way", LINKED)
def test_linked(way: str, trixie: Runtime, library, tmp_path) -> None:
    program = trixie.compile(PROGRAM, *LINKED[way], name=f"linked-{way}")
    share = Share.make(tmp_path, library, LIMIT)
    assert answer([*trixie.loader(), str(program), str(UNDER), str(OVER)], share) == COUNTED
    assert share.counted() == 0


def looking_up(hip: Runtime) -> list[str]:
    """The program that finds functions by name; to be followed by a library and a way."""
    program = hip.folder / "looked-up"
    if not program.exists():
        run(["cc", "-w", "-D_GNU_SOURCE", "-DWAY=2", "-o", program, PROGRAM, "-ldl"])
    return [*hip.loader(), str(program), str(UNDER), str(OVER)]


@pytest.mark.parametrize("way", LOOKED_UP)
@pytest.mark.parametrize("suite", ["trixie", "experimental"])
def test_looked_up(way: str, suite: str, runtimes, library, tmp_path) -> None:
    hip = present(runtimes[suite])
    command = [*looking_up(hip), hip.hip.name, way]
    found = answer(command, Share.make(tmp_path, library, LIMIT))
    if found == "absent":
        symbols = subprocess.run(["nm", "-D", hip.hip], capture_output=True, text=True, check=True)
        assert f" T {way}@" not in symbols.stdout, "HIP has it, and the program could not use it"
    else:
        assert found == COUNTED


def test_python_ctypes(runtimes, library, tmp_path) -> None:
    """The interpreter of the tests itself, with the bookworm HIP, whose libc need is the oldest."""
    hip = present(runtimes["bookworm"])
    libc = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
    if libc < (2, 36):
        need.lacking(f"bookworm's HIP needs glibc 2.36, this is {libc}")
    # Only what the machine lacks: a second libc in the path would replace its own.
    private = tmp_path / "libraries"
    private.mkdir()
    for name in ("libamdhip64.so.5", "libnuma.so.1"):
        shutil.copy(next((hip.root / "usr/lib/x86_64-linux-gnu").glob(name)), private)
    shutil.copy(hip.standin, private)
    for pattern in (
        "libamd_comgr.so.2",
        "libLLVM-15.so.1",
        "libhsakmt.so.1",
        "libedit.so.2",
        "libbsd.so.0",
        "libmd.so.0",
        "libz3.so.4",
        "libxml2.so.2",
        "libicu*.so.72",
    ):
        for file in (hip.root / "usr/lib/x86_64-linux-gnu").glob(pattern):
            (private / file.name).symlink_to(file)
    text = f"""
import ctypes
hip = ctypes.CDLL("libamdhip64.so.5")
first, second = ctypes.c_void_p(), ctypes.c_void_p()
size = ctypes.c_size_t
print(
    hip.hipMallocManaged(ctypes.byref(first), size({UNDER}), 1),
    hip.hipMallocManaged(ctypes.byref(second), size({OVER}), 1),
    hip.hipFree(first),
)
print(
    hip.hipMalloc(ctypes.byref(first), size({UNDER})),
    hip.hipMalloc(ctypes.byref(second), size({OVER})),
    hip.hipFree(first),
)
"""
    share = Share.make(tmp_path, library, LIMIT)
    environment = share.environment({"LD_LIBRARY_PATH": str(private)})
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == [COUNTED, COUNTED], done.stderr


def test_exceptions_pass_through(trixie: Runtime, library, tmp_path) -> None:
    program = trixie.compile(SOURCE / "tests" / "exceptions.cc", "-std=c++17")
    share = Share.make(tmp_path, library, LIMIT)
    # 8 threads, 5 rounds, each ended by one refusal.
    assert answer([*trixie.loader(), str(program), str(8 * MIB)], share) == "1 40"
    assert share.counted() == share.allocated() == 0


def test_under_address_sanitizer(trixie: Runtime, library, tmp_path) -> None:
    """The program is instrumented; the library runs beside it, in its own namespace.

    ThreadSanitizer cannot be: its 786 KiB of static thread-local storage find no room beside any
    audit library (glibc's own sotruss-lib.so neither). test_units.py runs it on the parts.
    """
    found = subprocess.run(
        ["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        need.lacking("libasan.so is not here")
    program = trixie.compile(
        SOURCE / "tests" / "exceptions.cc",
        *("-std=c++17", "-g", "-fsanitize=address"),
        name="exceptions-address",
    )
    loader = trixie.loader()
    loader[-1] += f":{Path(found).resolve().parent}:/usr/lib/x86_64-linux-gnu"
    share = Share.make(tmp_path, library, LIMIT)
    done = subprocess.run(
        [*loader, program, str(8 * MIB)],
        env=share.environment({"ASAN_OPTIONS": "detect_leaks=0"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "1 40", done.stderr[-3000:]
    assert "AddressSanitizer" not in done.stderr


def test_copies_of_one_library_share_the_account(trixie: Runtime, library, tmp_path) -> None:
    """Four copies count together; a fifth is refused, since its calls could not be counted."""
    program = trixie.compile(SOURCE / "tests" / "copies.c")
    copies = []
    for i in range(5):
        copies.append(tmp_path / f"copy{i}.so")
        shutil.copy(trixie.standin, copies[-1])
    share = Share.make(tmp_path, library, LIMIT)
    command = [*trixie.loader(), str(program), str(100 * MIB), "1"]
    assert answer([*command, str(copies[0]), str(copies[1])], share) == "0 0"
    assert answer([*command, *map(str, copies[:3])], share) == f"0 0 {0x1008}"
    small = [*trixie.loader(), str(program), str(MIB), "1"]
    assert answer([*small, *map(str, copies)], share) == f"0 0 0 0 {0x1008}"


def test_closing_and_opening_again(trixie: Runtime, library, tmp_path) -> None:
    program = trixie.compile(SOURCE / "tests" / "copies.c")
    copy = tmp_path / "again.so"
    shutil.copy(trixie.standin, copy)
    share = Share.make(tmp_path, library, LIMIT)
    command = [*trixie.loader(), str(program), str(200 * MIB), "20", str(copy)]
    assert answer(command, share) == "0"
    assert share.counted() == 0


@pytest.mark.parametrize("suite", ["sid", "experimental"])
def test_hip_closed_and_opened_again(suite: str, runtimes, library, tmp_path) -> None:
    """From HIP 6 on: the LLVM of the older ends the program, without the library too."""
    hip = present(runtimes[suite])
    command = [*looking_up(hip), hip.hip.name, "again"]
    assert answer(command, Share.make(tmp_path, library, LIMIT)) == COUNTED


def test_two_versions_of_hip_share_the_account(trixie: Runtime, library, tmp_path) -> None:
    program = trixie.folder / "looked-up"
    if not program.exists():
        run(["cc", "-w", "-D_GNU_SOURCE", "-DWAY=2", "-o", program, PROGRAM, "-ldl"])
    second = tmp_path / "libamdhip64-second.so"
    shutil.copy(trixie.hip, second)
    share = Share.make(tmp_path, library, LIMIT)
    # The first copy comes with LD_PRELOAD; the program calls the second by name.
    loader = trixie.loader()
    command = [loader[0], "--preload", str(trixie.hip), *loader[1:], str(program)]
    found = answer([*command, str(UNDER), str(OVER), str(second), "dlsym"], share)
    assert found == COUNTED


def test_managed_memory_with_a_pool_behind_it_counts_once(trixie: Runtime, library, tmp_path):
    """Counted at HIP's level, it is not counted again below. No real HIP does so; the peer of the
    benchmarks serves hipMallocManaged from a pool of ROCr."""
    peer = Path(__file__).resolve().parents[1] / "bench" / "libamvgpu_peer.c"
    rocr, hip = tmp_path / "libhsa-runtime64.so.1", tmp_path / "libamdhip64.so.7"
    run(["cc", "-O2", "-fPIC", "-shared", "-Wl,-soname,libhsa-runtime64.so.1", "-o", rocr, peer])
    run(["cc", "-O2", "-fPIC", "-shared", "-DHIP", "-o", hip, peer, rocr])
    program = tmp_path / "linked"
    run(["cc", "-w", "-DWAY=0", "-o", program, PROGRAM, hip, rocr])
    share = Share.make(tmp_path, library, 150 * MIB)
    environment = share.environment({"LD_LIBRARY_PATH": str(tmp_path)})
    done = subprocess.run(
        [program, str(100 * MIB), str(100 * MIB)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == COUNTED
    assert share.counted() == 0
