"""Compute-unit sets and HSA_CU_MASK: grammar, atoms and legality.

A CU set is a Python integer used as a bit set: bit *i* set means that CU *i* belongs to the set.
Intersection is ``a & b``, union ``a | b``, and the number of CUs ``bits.bit_count()``.

ROCr reads ``mask = set (";" set)*`` with ``set = gpus ":" cus``, where both lists are made of
decimal ``ID`` or ``ID-ID`` separated by commas. What it cannot read it drops together with all that
follows, silently, and a GPU that no set names keeps all of its CUs: a wrong mask fails open. So
this module is stricter than ROCr: whatever it accepts, ROCr reads the same way.

Standard library only and cheap to import, because the OCI hook runs it before every container.
"""

from __future__ import annotations

MAX_CUS = 4096
"""More CUs than any GPU has: the bound that keeps hostile text from making huge integers."""

MAX_GPUS = 1024
"""More GPU indexes than one container can see: the bound of the left side of a mask set."""

MAX_TEXT = 64 * 1024
"""Longest text that is read, in characters; no mask of whole ranges comes near it."""

RDNA_VERSION = 100000
"""``gfx_target_version`` from which on a GPU is RDNA (gfx10 and later): a WGP holds two CUs."""


class MaskError(ValueError):
    """A CU list or mask that ROCr would drop or misread; the message says which part and why."""


def atom_size(gfx_target_version: int, xccs: int) -> int:
    """Return the number of consecutive CUs that can only be granted together.

    RDNA: 2, the CUs of a WGP (one orphaned CU discards the whole mask). CDNA with X > 1 XCCs: X,
    since bit *i* lands on XCC *i* mod X and an XCC left without a bit runs unmasked. Otherwise 1.
    Measured on gfx1101 and on an 8-XCC gfx942.
    """
    if gfx_target_version >= RDNA_VERSION:
        return 2
    return max(1, xccs)


def span(first: int, count: int) -> int:
    """Return the CU set of ``count`` consecutive CUs from ``first``."""
    return ((1 << count) - 1) << first


def runs(bits: int) -> list[tuple[int, int]]:
    """Return the maximal runs of a CU set as ``(first, count)``, in ascending order."""
    found = []
    position = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        position += gap
        count = (~bits & (bits + 1)).bit_length() - 1
        found.append((position, count))
        bits >>= count
        position += count
    return found


def format_cus(bits: int) -> str:
    """Return the compressed CU list of a set, such as ``0-3,8,10-12``; empty for the empty set."""
    return ",".join(
        str(first) if count == 1 else f"{first}-{first + count - 1}" for first, count in runs(bits)
    )


def parse_cus(text: str) -> int:
    """Return the CU set that a list such as ``0-3,8`` names.

    Raises MaskError where ROCr would drop the list, and on ids from MAX_CUS on.
    """
    bits = 0
    for first, last in _ranges(text, MAX_CUS, "CU"):
        bits |= span(first, last - first + 1)
    return bits


def format_mask(sets: list[int]) -> str:
    """Return the HSA_CU_MASK that gives container-local GPU *i* the CU set ``sets[i]``."""
    return ";".join(f"{index}:{format_cus(bits)}" for index, bits in enumerate(sets))


def parse_mask(text: str) -> dict[int, int]:
    """Return the CU set by container-local GPU index of an HSA_CU_MASK.

    Raises MaskError for everything that ROCr drops silently: blanks, hexadecimal, ``GPU-`` keys,
    a GPU that is named twice, an empty set or list, and a mask of more than MAX_TEXT characters.
    """
    if len(text) > MAX_TEXT:
        raise MaskError(f"a mask of {len(text)} characters is longer than {MAX_TEXT}")
    sets: dict[int, int] = {}
    for part in text.split(";"):
        gpus, colon, cus = part.partition(":")
        if not colon:
            raise MaskError(f"the set {part[:80]!r} has no ':' between its GPUs and its CUs")
        bits = parse_cus(cus)
        for first, last in _ranges(gpus, MAX_GPUS, "GPU"):
            for index in range(first, last + 1):
                if index in sets:
                    raise MaskError(f"GPU {index} is named more than once")
                sets[index] = bits
    return sets


def fault(bits: int, count: int, atom: int) -> str | None:
    """Say why a CU set is not legal for a GPU of ``count`` CUs and this atom; None if it is legal.

    Every fault named here makes the GPU run other CUs than the set says, up to all of them.
    """
    if not bits:
        return "it names no CU"
    if bits >> count:
        beyond = format_cus(bits >> count << count)
        return f"CU {beyond} is beyond the GPU's {count} CUs, and is ignored"
    broken = bits ^ whole_atoms(bits, count, atom)
    if broken:
        return f"CU {format_cus(broken)} does not fill whole atoms of {atom}, which opens the GPU"
    return None


def whole_atoms(bits: int, count: int, atom: int) -> int:
    """Return the CUs of the set that lie in atoms which the set contains whole."""
    if atom == 1:
        return bits & span(0, count)
    whole = 0
    for index in range(count // atom):
        unit = span(index * atom, atom)
        if bits & unit == unit:
            whole |= unit
    return whole


def _ranges(text: str, limit: int, noun: str) -> list[tuple[int, int]]:
    """Split a list into inclusive ranges, with every id below ``limit``."""
    if len(text) > MAX_TEXT:
        raise MaskError(f"a {noun} list of {len(text)} characters is longer than {MAX_TEXT}")
    ranges = []
    for item in text.split(","):
        low, dash, high = item.partition("-")
        ends = (low, high) if dash else (low, low)
        for end in ends:
            # isdecimal alone also takes the digits of other scripts, which ROCr does not.
            if not (end.isascii() and end.isdecimal()):
                raise MaskError(f"{item[:80]!r} is not a {noun} id or range of ids in decimal")
            if len(end) > len(str(limit)) or int(end) >= limit:
                raise MaskError(f"{noun} {end[:80]} is not below {limit}")
        first, last = int(ends[0]), int(ends[1])
        if first > last:
            raise MaskError(f"the {noun} range {item!r} runs backwards")
        ranges.append((first, last))
    return ranges
