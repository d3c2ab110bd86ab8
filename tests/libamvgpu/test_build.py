"""The built file: what it exports, and what it needs of a libc."""

from __future__ import annotations

import re
import subprocess

from tests.libamvgpu.runtime import SOURCE, run


def dynamic(library, *options: str) -> str:
    return subprocess.run(
        ["readelf", "--wide", *options, library], capture_output=True, text=True, check=True
    ).stdout


def test_exports_only_the_audit_interface(library) -> None:
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    assert names == {"la_version", "la_objopen", "la_objclose"}


def test_needs_no_newer_libc_than_2_17(library) -> None:
    versions = set(re.findall(r"GLIBC_(\d+)\.(\d+)", dynamic(library, "--version-info")))
    assert max((int(major), int(minor)) for major, minor in versions) <= (2, 17)


def test_header_of_the_region_stands_alone(tmp_path) -> None:
    """A monitor includes it, with the offsets of region.md."""
    source = tmp_path / "monitor.c"
    source.write_text(
        '#include "region.h"\n#include <assert.h>\n#include <stddef.h>\n'
        'static_assert(REGION_SIZE(2) == 36864, "");\n'
        'static_assert(offsetof(struct region_header, devices) == 12, "");\n'
        'static_assert(offsetof(struct region_header, limit) == 32, "");\n'
        'static_assert(sizeof(struct region_slot) == 16, "");\n'
        'static_assert(offsetof(struct region_slot, pid) == 8, "");\n'
    )
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    run(["cc", *flags, f"-I{SOURCE}", source])


def test_needs_only_libc(library) -> None:
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic(library, "--dynamic")))
    assert needed <= {"libc.so.6", "ld-linux-x86-64.so.2"}


def test_needs_no_static_thread_storage(library) -> None:
    """initial-exec storage is scarce in a second link namespace."""
    assert "STATIC_TLS" not in dynamic(library, "--dynamic")


def test_never_allocates_or_buffers(library) -> None:
    """malloc and stdio can stay locked for ever in a forked child."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--undefined-only", library], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    forbidden = {"malloc", "calloc", "realloc", "free", "printf", "fprintf", "snprintf", "fopen"}
    assert not names & (forbidden | {"strerror", "setlocale", "dlsym", "dlopen", "pthread_atfork"})
