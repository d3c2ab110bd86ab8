"""The partition modes of a GPU: how its compute units and its memory are parted."""

from __future__ import annotations

from cdi.node import sysfs

FIXED_MODES = {"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}
"""Partitions by compute mode; in CPX there is one for each XCC."""


def current(path: str) -> str:
    """Return the compute partition mode in lower case; empty where there is none."""
    text = sysfs.read(path)
    if text is None or text == "UNKNOWN\n":
        return ""
    text = text.strip()
    if not (text.isascii() and text.isalnum() and len(text) <= 16):
        raise sysfs.FileError(f"expected a partition mode in {path}, found {sysfs.shown(text)}")
    return text.lower()


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
