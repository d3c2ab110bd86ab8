"""The DRM nodes of a device: its card and its render node."""

from __future__ import annotations

from cdi.node import sysfs

MAX_MINOR = 1 << 20
"""Linux keeps 20 bits for a minor number."""


def minors(folder: str) -> tuple[int | None, int | None]:
    """Return the card and the render minor in a device's own drm folder, None for what it lacks."""
    found: dict[str, int] = {}
    for name in sysfs.listing(folder) or ():
        for kind in ("card", "renderD"):
            digits = name.removeprefix(kind)
            if digits == name or not sysfs.is_decimal(digits):
                continue
            if kind in found or len(digits) > 7 or int(digits) >= MAX_MINOR:
                raise sysfs.FileError(
                    f"expected one {kind} node in {folder}, found {name[:40]} besides"
                )
            found[kind] = int(digits)
    return found.get("card"), found.get("renderD")
