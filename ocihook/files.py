"""Reading small files whole, with a bound, without ever waiting for a peer."""

from __future__ import annotations

import os
import stat

from ocihook.refusal import Refusal

CHUNK = 256 * 1024


def read_descriptor(descriptor: int, limit: int, name: str) -> bytes:
    """Return everything that is left in an open file; refuse more than ``limit`` bytes."""
    parts = []
    size = 0
    while chunk := os.read(descriptor, CHUNK):
        size += len(chunk)
        if size > limit:
            raise Refusal(
                f"at most {limit} bytes in {name}", "more", "look at what the runtime gave the hook"
            )
        parts.append(chunk)
    return b"".join(parts)


def read_file(path: str, limit: int) -> bytes:
    """Return the content of a regular file of the host; raises OSError if it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refusal(f"a regular file at {path}", "another kind of file", "remove it")
        return read_descriptor(descriptor, limit, path)
    finally:
        os.close(descriptor)
