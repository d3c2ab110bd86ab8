"""Memory that is free is given back: by default glibc keeps a heap for each of several threads."""

from __future__ import annotations

import ctypes
import gc

M_ARENA_MAX = -8
"""Parameter of mallopt(3)."""


def confine() -> None:
    """Let all threads share two heaps; to be called before there are any."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 2)


def settle() -> None:
    """Take what there is now as staying, and give back what starting has left over."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    # Other C libraries do without.
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
