"""Amounts a user asks for: a percentage, or a number of bytes or CUs.

Two readings of sizes are about. To Docker and Podman (go-units' RAMInBytes, for ``--memory 48g``)
every unit is a power of 1024, in either case, with ``b`` or ``ib`` or without: 48g, 48GB and 48GiB
are the same. To Kubernetes (resource.Quantity) Gi is 2^30, G is 10^9 and m is a thousandth. Here a
size has the first reading, because who types it is about to type ``docker run`` or ``podman run``,
because HIP_DEVICE_MEMORY_LIMIT has it too, and because a GPU sold with 24 GB has 24 GiB. What only
Kubernetes writes, Gi and 48e9, means the same here. A unit without an i may have been meant in
powers of 1000, 7 % to 10 % less, so such an amount has a note to say with what it came to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from cdi.errors import PermanentError
from cdi.node.gpu import Partition

MIB = 1 << 20

UNITS = "KMGT"
"""Each 1024 times the one before."""

SIZE = re.compile(
    r"(?P<number>(\d+(\.\d*)?|\.\d+)(e\+?\d{1,2})?) ?(?P<unit>[kmgt])?(?P<binary>i?)(?P<byte>b?)",
    re.IGNORECASE | re.ASCII,
)

MAX_SCALE = 1000

MAX_LENGTH = 40
"""Characters of an amount; arithmetic with thousands of digits takes its time."""


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something: ``value`` percent of the whole, or ``value`` bytes or CUs."""

    value: int
    percent: bool
    note: str = field(default="", compare=False)
    """What to tell whoever may have meant another amount."""

    def of(self, whole: int) -> int:
        """Return the amount in the unit of the whole, a percentage rounded down."""
        return whole * self.value // 100 if self.percent else self.value

    def __str__(self) -> str:
        return f"{self.value} %" if self.percent else str(self.value)


ALL = Amount(100, percent=True)


def parse_percent(text: str) -> Amount:
    """Return the percentage, 1 to 100, that text such as ``25`` or ``25%`` names."""
    digits = text.strip().removesuffix("%").rstrip()
    if not _is_number(digits) or not 1 <= int(digits) <= 100:
        raise PermanentError(
            f"a percentage is a whole number from 1 to 100, found {_shown(text)}",
            "give for example 25",
        )
    return Amount(int(digits), percent=True)


def parse_scale(text: str) -> float:
    """Return how many times the memory of a GPU may be booked, 1 to 1000."""
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1 <= scale <= MAX_SCALE:
        raise PermanentError(
            f"the memory scale is a number from 1 to {MAX_SCALE}, found {_shown(text)}",
            "leave it out, or give for example 1.5",
        )
    return scale


def parse_memory(text: str) -> Amount:
    """Return the amount of memory that text names: ``48GiB``, ``48g``, bytes, or ``25%``."""
    stripped = text.strip()
    if stripped.endswith("%"):
        return parse_percent(stripped)
    found = SIZE.fullmatch(stripped) if len(stripped) <= MAX_LENGTH else None
    number = Fraction(found["number"]) if found else Fraction(0)
    if not found or not number or (found["binary"] and not found["unit"]):
        raise PermanentError(
            "memory is a percentage, or a number above 0 of bytes, K, M, G or T (with i, B or iB "
            f"behind it the same: powers of 1024, as to Docker and Podman), found {_shown(text)}",
            "give for example 48GiB, 48g, 51539607552 or 25%",
        )
    power = UNITS.index(found["unit"].upper()) + 1 if found["unit"] else 0
    value = int(number * 1024**power)
    if value < MIB:
        # Who writes 48 means GiB, and a share of 48 bytes would only fail later, in the container.
        raise PermanentError(
            "less than 1 MiB of memory is no use, and a number without a unit is in bytes, "
            f"found {_shown(text)}",
            f"give for example {found['number']}GiB or {found['number']}MiB",
        )
    note = ""
    if power and not found["binary"]:
        note = (
            f"{stripped} is {format_bytes(value)} ({value} bytes): units are powers of 1024, as to "
            "Docker and Podman; for powers of 1000, as to Kubernetes, give "
            f"{int(number * 1000**power)}"
        )
    return Amount(value, percent=False, note=note)


def format_mib(count: int) -> str:
    """Return bytes in whole MiB, rounded down: what is free must not seem more than it is."""
    return f"{count // MIB} MiB" if count >= MIB or not count else f"{count} B"


def format_bytes(count: int) -> str:
    """Return bytes for people, in the largest unit that loses nothing, or rounded to 0.1 GiB."""
    if count >= MIB << 10:
        gib = count / (MIB << 10)
        return f"{gib:.0f} GiB" if gib == int(gib) else f"{gib:.1f} GiB"
    if count % MIB == 0:
        return f"{count // MIB} MiB"
    return f"{count} B"


def format_memory(partition: Partition) -> str:
    """Return how much memory a partition has, and of which kind, for people."""
    if not partition.memory_bytes:
        return "unknown"
    return f"{format_bytes(partition.memory_bytes)} {partition.memory_kind}"


def _is_number(text: str) -> bool:
    # Bounded, because Python refuses to convert very long numbers with an error of its own.
    return text.isascii() and text.isdecimal() and len(text) <= 19


def _shown(text: str) -> str:
    return repr(text[:MAX_LENGTH])
