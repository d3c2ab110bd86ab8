"""Amounts a user asks for: a percentage, or a number of bytes or CUs."""

from __future__ import annotations

from dataclasses import dataclass

from cdi.errors import PermanentError

MIB = 1 << 20

UNITS = {"": 1, "B": 1, "MI": MIB, "MIB": MIB, "GI": MIB << 10, "GIB": MIB << 10}
"""Bytes by unit, in upper case. Decimal units are left out: with MB and GB, users mean either."""


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something: ``value`` percent of the whole, or ``value`` bytes or CUs."""

    value: int
    percent: bool

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
            f"a percentage is a whole number from 1 to 100, found {text!r}",
            "give for example 25",
        )
    return Amount(int(digits), percent=True)


def parse_memory(text: str) -> Amount:
    """Return the amount of memory that text names: ``48GiB``, ``512 MiB``, bytes, or ``25%``."""
    stripped = text.strip()
    if stripped.endswith("%"):
        return parse_percent(stripped)
    digits = stripped.rstrip("BGIKMTbgikmt ")
    unit = stripped[len(digits) :].strip().upper()
    if not _is_number(digits) or unit not in UNITS or int(digits) == 0:
        raise PermanentError(
            f"memory is a number above 0 of bytes, MiB, GiB or percent, found {text!r}",
            "give for example 48GiB, 512MiB, 1073741824 or 25%",
        )
    if not unit and int(digits) < MIB:
        # Who writes 48 means GiB, and a share of 48 bytes would only fail later, in the container.
        raise PermanentError(
            f"a number without a unit is in bytes, and less than 1 MiB is no use, found {text!r}",
            f"give for example {digits}GiB or {digits}MiB",
        )
    return Amount(int(digits) * UNITS[unit], percent=False)


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


def _is_number(text: str) -> bool:
    # Bounded, because Python refuses to convert very long numbers with an error of its own.
    return text.isascii() and text.isdecimal() and len(text) <= 19
