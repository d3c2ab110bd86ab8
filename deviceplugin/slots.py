"""HAMi's slots: what its scheduler booked for each container of a pod.

A pod's annotation has one slot for each container, init containers first, and each slot ends with
``;``. A slot is zero or more bookings, each ``id,type,MiB,CUs:`` with the colon behind it. The
grammar is HAMi's, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin.refusal import Refusal

MAX_TEXT = 256 << 10
"""Characters: the size that Kubernetes allows all annotations of an object together."""

MAX_NUMBER = 1 << 31
"""HAMi keeps MiB and CUs in 32 bits with a sign."""


@dataclass(frozen=True, slots=True)
class Booking:
    """What the scheduler booked of one unit."""

    id: str
    type: str
    memory_mib: int
    cus: int
    """A number of CUs, not a percentage."""


Slots = tuple[tuple[Booking, ...], ...]


def encode(slots: Sequence[Sequence[Booking]]) -> str:
    """Return the annotation of slots."""
    return "".join(
        "".join(f"{one.id},{one.type},{one.memory_mib},{one.cus}:" for one in slot) + ";"
        for slot in slots
    )


def decode(text: str) -> Slots:
    """Return the slots of an annotation; raises Refusal for what HAMi does not write."""
    if not text.endswith(";") or len(text) > MAX_TEXT:
        raise Refusal(
            f"slots that each end with ';' were expected, found {text[-80:]!r}",
            "create the pod anew, without annotations of hami.io",
        )
    return tuple(_slot(slot) for slot in text[:-1].split(";"))


def _slot(text: str) -> tuple[Booking, ...]:
    if not text:
        return ()
    if not text.endswith(":"):
        raise _malformed(text)
    return tuple(_booking(booking) for booking in text[:-1].split(":"))


def _booking(text: str) -> Booking:
    fields = text.split(",")
    if len(fields) != 4 or not fields[0] or not all(map(_is_number, fields[2:])):
        raise _malformed(text)
    return Booking(fields[0], fields[1], int(fields[2]), int(fields[3]))


def _is_number(text: str) -> bool:
    digits = text.isascii() and text.isdecimal() and len(text) <= 10
    return digits and int(text) < MAX_NUMBER and text == str(int(text))


def _malformed(text: str) -> Refusal:
    return Refusal(
        f"bookings 'id,type,MiB,CUs:' were expected in a slot, found {text[:80]!r}",
        "create the pod anew, without annotations of hami.io",
    )


def emptied(slots: Slots, index: int) -> Slots:
    """Return the slots without what the slot of this index held."""
    return (*slots[:index], (), *slots[index + 1 :])
