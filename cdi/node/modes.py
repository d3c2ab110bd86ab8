"""The partition modes of a GPU: how its compute units and its memory are parted."""

from __future__ import annotations

from cdi.node import sysfs

FIXED_MODES = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Partitions by compute mode; in CPX there is one for each XCC."""


UNKNOWN = "unknown"
"""What a mode is called that is there and cannot be read."""


def current(path: str, warnings: list[str]) -> str:
    """Return the compute partition mode in lower case; empty where there is none."""
    try:
        text = sysfs.read(path)
    except sysfs.FileError as error:
        warnings.append(f"the compute partition mode is not known: {error}")
        return UNKNOWN
    if text is None or text == "UNKNOWN\n":
        return ""
    mode = text.strip()
    if mode.isascii() and mode.isalnum() and len(mode) <= 16:
        return mode.lower()
    warnings.append(f"expected a compute partition mode in {path}, found {sysfs.shown(mode)}")
    return UNKNOWN


def parts(mode: str, seen: int) -> int | None:
    """Return how many partitions a GPU has of which so many were seen; None if that is not told."""
    if mode == "cpx":
        # XCCs come in pairs, one pair a die: an odd number tells that a node is missing.
        return seen + seen % 2
    return FIXED_MODES.get(mode, 1 if mode == "" and seen == 1 else None)


def offered(path: str, warnings: list[str]) -> tuple[str, ...]:
    """Return the modes of a list such as ``SPX, DPX``, in lower case; only shown to the user."""
    try:
        text = (sysfs.read(path) or "").strip()
    except sysfs.FileError as error:
        warnings.append(f"partition modes are not known: {error}")
        return ()
    modes = tuple(mode.strip().lower() for mode in text.split(",")) if text else ()
    if len(text) > 200 or not all(mode.isascii() and mode.isalnum() for mode in modes):
        warnings.append(f"expected partition modes in {path}, found {sysfs.shown(text)}")
        return ()
    return tuple(mode for mode in modes if mode != "unknown")
