"""Market names of GPUs, for people and for labels: nothing is decided by them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

IDS = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
"""Where distributions and AMD's own packages keep libdrm's list, below the sysroot."""

MAX_IDS = 1 << 20
"""Bytes read of such a list; libdrm's has about 20 KiB."""

MAX_NAME = 64
"""Longest name in characters."""

SEPARATORS = ",:;"
"""What HAMi separates its lists of devices by; no name may hold them."""


class Names:
    """The names that a sysroot and our own table know; read when first asked for."""

    def __init__(self, sysroot: Path) -> None:
        self._sysroot = sysroot

    def market_name(self, told: str, device_id: int, revision: int) -> str:
        """Return the name of a GPU, never empty.

        ``told`` is what its own ``product_name`` says, empty on virtual functions and Radeon. Then
        libdrm's list in the sysroot counts, then our own table, and at last the device id.
        """
        key = (f"{device_id:04x}", f"{revision:02x}")
        return (
            normalise(told)
            or self._listed.get(key)
            or self._own.get(key)
            or self._own.get((key[0], "*"))
            or (f"AMD GPU {device_id:04x}" if device_id else "AMD GPU")
        )

    @cached_property
    def _listed(self) -> dict[tuple[str, str], str]:
        """The names in libdrm's list by device id and revision; empty where there is no list."""
        for place in IDS:
            path = self._sysroot / place
            try:
                if path.is_file():
                    with path.open("rb") as file:
                        return parse_ids(file.read(MAX_IDS).decode(errors="replace"))
            except OSError:
                continue
        return {}

    @cached_property
    def _own(self) -> dict[tuple[str, str], str]:
        """Our own names by device id and revision, with the revision ``*`` for any."""
        names = {}
        text = Path(__file__).with_name("products.tsv").read_text(encoding="ascii")
        for line in text.splitlines()[1:]:
            device, revisions, name = line.split("\t")
            for revision in revisions.split(" "):
                names[device, revision] = name
        return names


def normalise(name: str) -> str:
    """Return a name in one line without separators of lists, blanks folded and cut to length."""
    kept = "".join(
        " " if character in SEPARATORS or not character.isprintable() else character
        for character in name[: 4 * MAX_NAME]
    )
    return " ".join(kept.split())[:MAX_NAME].rstrip()


def parse_ids(text: str) -> dict[tuple[str, str], str]:
    """Return the names in a list of libdrm's form, by device id and revision in lower case.

    A line is ``device, revision, name``, in hexadecimal. Others are passed over, as libdrm does.
    """
    names = {}
    for line in text.split("\n"):
        device, _, rest = line.partition(",")
        revision, comma, name = rest.partition(",")
        if comma and not line.startswith("#") and (known := normalise(name)):
            names[device.strip().lower(), revision.strip().lower()] = known
    return names
