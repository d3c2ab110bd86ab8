"""The real HIP of a Debian suite over the stand-in for ROCr, with the library under test."""

from __future__ import annotations

import os
import select
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests import debian
from tests.libamvgpu import region

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

SOURCE = Path(__file__).resolve().parents[2] / "libamvgpu"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
MIB = 1 << 20
PATIENCE = 20.0  # seconds for one answer
SUCCESS = 0
OUT_OF_MEMORY = 2  # hipErrorOutOfMemory
HSA_OUT_OF_RESOURCES = 0x1008

# A process in the stand-in's account: its number, changes done and begun, bytes of each GPU.
ACCOUNT_SLOT = struct.Struct("<IIQQ66Q")
ACCOUNT_SLOTS = 4096

PACKAGES = {
    "bookworm": "libamdhip64-5",
    "trixie": "libamdhip64-5",
    "sid": "libamdhip64-6",
    "experimental": "libamdhip64-7",
}
# The newest APU that each HIP knows.
APUS = {
    "bookworm": "gfx1035",  # Rembrandt
    "trixie": "gfx1103",  # Phoenix
    "sid": "gfx1151",  # Strix Halo
    "experimental": "gfx1151",
}
# Headers of HIP 5.2 lack what the others have.
WITHOUT = {
    "bookworm": ["-DHSA_TEST_HEADERS_WITHOUT_VMEM", "-DHIP_TEST_HEADERS_WITHOUT_GRAPH_MEMORY"],
}


def run(command: Sequence[str | Path]) -> None:
    """Run a build step; what it says is the failure's text."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"


def hip_tree(suite: str) -> Path:
    """Root filesystem with the suite's HIP and the headers."""
    return debian.tree(suite, PACKAGES[suite], "libamdhip64-dev", "libhsa-runtime-dev")


def headers() -> Path:
    """What the stand-in is built with."""
    return hip_tree("trixie") / "usr/include"


def build_library(folder: Path, *arguments: str) -> Path:
    """libamvgpu.so, made by its own Makefile."""
    run(["make", "-s", "-j2", "-C", SOURCE, f"BUILD={folder}", *arguments])
    return folder / "libamvgpu.so"


def build_standin(folder: Path, *flags: str | Path, after: Sequence[str | Path] = ()) -> Path:
    """The stand-in for libhsa-runtime64.so.1."""
    standin = SOURCE / "tests" / "standin"
    built = folder / "libhsa-runtime64.so.1"
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(standin.glob("*.c"))
    run(
        [
            "cc",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O2",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-parameter",
            f"-I{headers()}",
            "-Wl,-soname,libhsa-runtime64.so.1",
            f"-Wl,--version-script={standin / 'rocr.map'}",
            *flags,
            "-o",
            built,
            *sources,
            *list(after or ["-lpthread"]),
        ]
    )
    return built


@dataclass(frozen=True)
class Runtime:
    """One HIP: `root` is its tree, `folder` holds the stand-in and what is built against both."""

    suite: str
    root: Path
    folder: Path
    library: Path

    @property
    def hip(self) -> Path:
        return next((self.root / LIBRARIES).glob("libamdhip64.so.[0-9]"))

    @property
    def standin(self) -> Path:
        return self.folder / "libhsa-runtime64.so.1"

    def apu(self, kind: str = "1") -> dict[str, str]:
        """What makes the stand-in an APU, with the pools that this HIP's ROCr gives it."""
        extended = {} if self.suite == "bookworm" else {"STANDIN_EXTENDED": "1"}
        return {"STANDIN_APU": kind, "STANDIN_ARCH": APUS[self.suite], **extended}

    def loader(self, *first: Path) -> list[str]:
        """The suite's own ld.so; libraries in the folders `first` win."""
        path = ":".join(str(p) for p in (*first, self.folder, self.root / LIBRARIES))
        return [str(self.root / "lib64/ld-linux-x86-64.so.2"), "--library-path", path]

    def compile(self, source: Path, *flags: str | Path, name: str = "") -> Path:
        """A program against this HIP's headers and libraries (built once)."""
        built = self.folder / (name or source.stem)
        if not built.exists():
            compiler = "c++" if source.suffix == ".cc" else "cc"
            run(
                [
                    compiler,
                    "-O1",
                    "-w",
                    "-D__HIP_PLATFORM_AMD__",
                    *WITHOUT.get(self.suite, []),
                    f"-I{self.root / 'usr/include'}",
                    "-o",
                    built,
                    source,
                    *flags,
                    self.hip,
                    self.standin,
                    "-Wl,--allow-shlib-undefined",
                    "-lpthread",
                    "-ldl",
                ]
            )
        return built

    def driver(self) -> Path:
        return self.compile(SOURCE / "tests" / "driver.c")


@dataclass(frozen=True)
class Share:
    """A share as a container sees it: its environment and its usage region."""

    folder: Path
    limits: tuple[str, ...]
    library: Path

    @classmethod
    def make(cls, folder: Path, library: Path, *limits: int | str) -> Share:
        share = cls(folder, tuple(map(str, limits)), library)
        region.lay(share.usage, len(limits))
        return share

    @property
    def usage(self) -> Path:
        return self.folder / "usage"

    @property
    def account(self) -> Path:
        return self.folder / "account"

    @property
    def calls(self) -> Path:
        return self.folder / "calls"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        limits = {f"HIP_DEVICE_MEMORY_LIMIT_{i}": text for i, text in enumerate(self.limits)}
        return {
            "PATH": os.environ["PATH"],
            "LD_AUDIT": str(self.library),
            "HIP_DEVICE_MEMORY_SHARED_CACHE": str(self.usage),
            **limits,
            "STANDIN_ACCOUNT": str(self.account),
            "STANDIN_CALLS": str(self.calls),
            "STANDIN_ARCH": "gfx1030",  # has images, and every HIP knows it
            **(extra or {}),
        }

    def counted(self, device: int = 0) -> int:
        """Bytes of `device` in the library's account."""
        return sum(region.used(self.usage, device))

    def allocated(self, device: int = 0) -> int:
        """Bytes of GPU `device` in the stand-in's own account, all processes together."""
        if not self.account.exists():
            return 0
        text = self.account.read_bytes()
        (taken,) = struct.unpack_from("<Q", text)
        slots = [ACCOUNT_SLOT.unpack_from(text, 8 + ACCOUNT_SLOT.size * i) for i in range(taken)]
        return sum(slot[4 + device] for slot in slots)


class Driver:
    """A conversation with tests/driver.c."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, command: str) -> list[str]:
        assert self.process.stdin
        assert self.process.stdout
        # One line at a time goes either way, so that nothing is buffered when select looks.
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        answer = self.process.stdout.readline() if ready else ""
        if not ready:
            self.process.kill()
        if not answer:
            status = self.process.wait()
            assert self.process.stderr
            text = self.process.stderr.read()
            raise AssertionError(f"the program ended with {status} at {command!r}: {text}")
        return answer.split()

    def numbers(self, command: str) -> list[int]:
        return [int(word) for word in self.ask(command)]

    def take(self, entry: str, size: int) -> tuple[int, int]:
        """Answers the code and the number to give it back with."""
        answer = self.ask(f"take {entry} {size}")
        return int(answer[0]), int(answer[1])

    def give(self, number: int) -> int:
        return self.numbers(f"give {number}")[0]

    def finish(self) -> str:
        """End the program in good order; what it wrote on stderr."""
        _, text = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, text
        return text
