"""Gives back memory that is free, of which glibc by default keeps some for each thread."""

from __future__ import annotations

import ctypes
import gc

M_ARENA_MAX = -8
"""Parameter of mallopt(3)."""


def limit_arenas() -> None:
    """Let all threads share two arenas; to be called before there are any."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 2)


def trim() -> None:
    """Take what there is now as staying, and give back what starting has left over."""
    gc.collect()
    gc.freeze()
    libc = ctypes.CDLL(None)
    # Other C libraries do without.
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
