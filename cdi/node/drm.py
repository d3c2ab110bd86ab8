"""The DRM nodes of a device: its card and its render node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdi.node import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_MINOR = 1 << 20
"""Linux keeps 20 bits for a minor number."""


def minors(folder: str) -> tuple[int | None, int | None]:
    """Return the card and the render minor in a device's own drm folder, None for what it lacks.

    Raises FileError where there is more than one render node: which one is the device's is not
    known. Of two cards none is, since containers do without.
    """
    names = sysfs.listing(folder) or ()
    cards, renders = _numbers(names, "card"), _numbers(names, "renderD")
    if len(renders) > 1:
        raise sysfs.FileError(f"expected one renderD node in {folder}, found {renders[:4]}")
    return cards[0] if len(cards) == 1 else None, renders[0] if renders else None


def _numbers(names: Iterable[str], kind: str) -> list[int]:
    """Return the minors of the DRM nodes of a kind, ascending."""
    found = (name.removeprefix(kind) for name in names if name.startswith(kind))
    numbers = (int(digits) for digits in found if sysfs.is_decimal(digits) and len(digits) <= 7)
    return sorted({number for number in numbers if number < MAX_MINOR})
