"""The few facts of an ELF file that tell whether its loader takes LD_AUDIT.

Read with pread at bounded places and sizes: the file belongs to the image, and may be hostile, huge
or cut short. 64-bit little-endian only, as ROCm is.
"""

from __future__ import annotations

import os

MAGIC = b"\x7fELF\x02\x01"
"""ELF, 64 bits, little endian."""

MACHINES = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}
"""Folder of a machine's libraries in Debian's multiarch layout, by ``e_machine``."""

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_STRTAB, DT_STRSZ = 0, 5, 10
DT_VERDEF, DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD

MAX_SEGMENTS = 128
MAX_DYNAMIC = 64 * 1024
MAX_STRINGS = 1024 * 1024
MAX_VERSIONS = 512


class ElfError(ValueError):
    """The file is no ELF file that is understood; the message says why."""


class Elf:
    """An open ELF file."""

    __slots__ = ("descriptor", "interpreter", "machine", "segments")

    def __init__(self, descriptor: int) -> None:
        """Read the headers; raises ElfError."""
        self.descriptor = descriptor
        header = self._read(0, 64)
        if not header.startswith(MAGIC):
            raise ElfError("no 64-bit little-endian ELF file")
        self.machine = number(header, 18, 2)
        """``e_machine``."""
        start, size, count = number(header, 32, 8), number(header, 54, 2), number(header, 56, 2)
        if size != 56 or not 0 < count <= MAX_SEGMENTS:
            raise ElfError(f"{count} program headers of {size} bytes")
        table = self._read(start, size * count)
        self.segments = [
            tuple(number(table, at + offset, width) for offset, width in FIELDS)
            for at in range(0, len(table), size)
        ]
        """Kind, offset, address and size in the file of each segment."""
        self.interpreter = self._interpreter()
        """Path of the loader; None for a static program and for a library."""

    def versions(self) -> list[str]:
        """Return the names of the symbol versions that the file defines, such as GLIBC_2.34."""
        tags = self._dynamic()
        if DT_VERDEF not in tags or DT_STRTAB not in tags:
            return []
        count = min(tags.get(DT_VERDEFNUM, 0), MAX_VERSIONS)
        strings = self._read(self._offset(tags[DT_STRTAB]), min(tags.get(DT_STRSZ, 0), MAX_STRINGS))
        names = []
        at = self._offset(tags[DT_VERDEF])
        for _ in range(count):
            # Elfxx_Verdef: version, flags, ndx, cnt (2 each), hash, aux, next (4 each)
            entry = self._read(at, 20)
            name = number(self._read(at + number(entry, 12, 4), 8), 0, 4)
            names.append(strings[name : name + 64].split(b"\0")[0].decode("ascii", "replace"))
            step = number(entry, 16, 4)
            if not step:
                break
            at += step
        return names

    def _interpreter(self) -> str | None:
        for kind, offset, _, size in self.segments:
            if kind == PT_INTERP:
                if not 0 < size <= 4096:
                    raise ElfError(f"an interpreter's name of {size} bytes")
                return os.fsdecode(self._read(offset, size).split(b"\0")[0])
        return None

    def _dynamic(self) -> dict[int, int]:
        for kind, offset, _, size in self.segments:
            if kind == PT_DYNAMIC:
                table = self._read(offset, min(size, MAX_DYNAMIC) // 16 * 16)
                tags: dict[int, int] = {}
                for at in range(0, len(table), 16):
                    tag = number(table, at, 8)
                    if tag == DT_NULL:
                        break
                    tags[tag] = number(table, at + 8, 8)
                return tags
        return {}

    def _offset(self, address: int) -> int:
        for kind, offset, start, size in self.segments:
            if kind == PT_LOAD and start <= address < start + size:
                return address - start + offset
        raise ElfError(f"the address {address:#x} in no segment")

    def _read(self, offset: int, size: int) -> bytes:
        if offset >= 2**62:
            raise ElfError(f"the offset {offset:#x}")
        data = os.pread(self.descriptor, size, offset)
        if len(data) < size:
            raise ElfError(f"{len(data)} of {size} bytes at {offset:#x}")
        return data


FIELDS = ((0, 4), (8, 8), (16, 8), (32, 8))
"""Offset and width of p_type, p_offset, p_vaddr and p_filesz in a program header."""


def number(data: bytes, offset: int, width: int) -> int:
    """Return the little-endian number of ``width`` bytes at an offset."""
    return int.from_bytes(data[offset : offset + width], "little")


def glibc(versions: list[str]) -> tuple[int, int]:
    """Return the newest glibc that the symbol versions tell of, (0, 0) if they are not glibc's."""
    newest = (0, 0)
    for name in versions:
        parts = name.removeprefix("GLIBC_").split(".")
        if name.startswith("GLIBC_") and len(parts) > 1 and all(map(str.isdecimal, parts[:2])):
            newest = max(newest, (int(parts[0]), int(parts[1])))
    return newest
