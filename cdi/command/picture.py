"""A GPU's compute units as a picture: a row for each XCC, a cell for each CU, a letter a share.

Bit *i* of a CU set lies on XCC *i* mod X (measured on an 8-XCC gfx942), so an atom of such a GPU is
a column of the picture. A GPU with one XCC is drawn in rows of at most 64 CUs.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdi import cumask
from cdi.node.gpu import Gpu, Partition
from cdi.plan.amount import format_bytes, format_memory
from cdi.plan.names import label
from cdi.plan.planner import divisible
from cdi.plan.share import Share

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
FREE = "·"
ROW_CUS = 64

HUES = (210, 35, 140, 0, 275, 180, 60, 320, 100, 235)
"""Degrees on the colour circle, neighbours far apart."""

ANSI = (34, 33, 32, 31, 35, 36, 94, 93, 92, 95)
"""Terminal colours in the same order."""

CELL = 12
"""Side of a CU in the SVG, in pixels, with its gap."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A share's part of the partition that is drawn."""

    name: str
    cus: int
    memory: int
    extent: str
    """What it has, for people."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A partition with who lives on it."""

    gpu: Gpu
    partition: Partition
    tenants: tuple[Tenant, ...]

    @property
    def title(self) -> str:
        """What the partition is, in a line."""
        part = self.partition
        return (
            f"GPU {label(self.gpu, part)}  {self.gpu.product}  {part.gfx or 'unknown'}  "
            f"{part.cus or 'unknown'} CUs in atoms of {part.atom or 'unknown'}  "
            f"{format_memory(part)}"
        )

    @property
    def rows(self) -> list[list[int]]:
        """The CUs of each row, in the order of their columns."""
        part = self.partition
        if part.xccs > 1:
            return [list(range(xcc, part.cus, part.xccs)) for xcc in range(part.xccs)]
        return [
            list(range(first, min(first + ROW_CUS, part.cus)))
            for first in range(0, part.cus, ROW_CUS)
        ]

    def owner(self, cu: int) -> int | None:
        """Return the index of the tenant that has a CU."""
        return next(
            (index for index, tenant in enumerate(self.tenants) if tenant.cus >> cu & 1), None
        )

    def row_name(self, row: int) -> str:
        """Return what a row is called."""
        return f"XCC {row}" if self.partition.xccs > 1 else f"CU {row * ROW_CUS:3}"


def draw(gpu: Gpu, partition: Partition, shares: Iterable[Share]) -> Picture:
    """Return the picture of a partition with the shares that live there."""
    return Picture(
        gpu,
        partition,
        tuple(
            Tenant(share.name, slice_.cus, slice_.memory, slice_.extent)
            for share in shares
            for slice_ in share.slices
            if slice_.place == (gpu.pci, partition.index)
        ),
    )


def to_text(picture: Picture, colour: bool) -> str:
    """Return a picture for a terminal, each share in its letter and, if asked, its colour."""
    cells = [_letter(index) for index in range(len(picture.tenants))]
    if colour:
        cells = [
            f"\x1b[{ANSI[index % len(ANSI)]}m{cell}\x1b[0m" for index, cell in enumerate(cells)
        ]
    lines = [picture.title]
    for number, row in enumerate(picture.rows):
        owners = [picture.owner(cu) for cu in row]
        drawn = "".join(FREE if owner is None else cells[owner] for owner in owners)
        lines.append(f"  {picture.row_name(number)} {drawn}")
    lines += [
        f"  {cell} {tenant.name}: {tenant.extent}"
        for cell, tenant in zip(cells, picture.tenants, strict=True)
    ]
    return "\n".join([*lines, f"  {FREE} free: {_free(picture)}"]) + "\n"


def to_svg(pictures: Sequence[Picture]) -> str:
    """Return pictures below each other as one SVG document."""
    parts: list[str] = []
    top = 10
    width = 320
    for picture in pictures:
        parts.append(_svg_text(10, top + 12, picture.title, weight="bold"))
        top += 20
        for number, row in enumerate(picture.rows):
            parts.append(_svg_text(10, top + 9, picture.row_name(number)))
            for column, cu in enumerate(row):
                parts.append(_svg_cell(60 + column * CELL, top, picture.owner(cu), f"CU {cu}"))
            width = max(width, 70 + len(row) * CELL)
            top += CELL
        for index, tenant in enumerate(picture.tenants):
            top += 6
            parts.append(_svg_cell(60, top, index, tenant.name))
            parts.append(_svg_text(76, top + 9, f"{tenant.name}: {tenant.extent}"))
            top += CELL
        top += 20
        width = max(width, 20 + 7 * len(picture.title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        'font-family="sans-serif" font-size="10">\n'
        f'<rect width="{width}" height="{top}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _letter(index: int) -> str:
    return LETTERS[index % len(LETTERS)]


def _free(picture: Picture) -> str:
    """Say what no tenant has."""
    part, tenants = picture.partition, picture.tenants
    if not divisible(part):
        return "nothing, as it can only be had whole" if tenants else "all, to be had whole"
    free = cumask.span(0, part.cus)
    for tenant in tenants:
        free &= ~tenant.cus
    cus = f"{free.bit_count()} CUs ({cumask.format_cus(free)})" if free else "no CU"
    memory = max(0, part.memory_bytes - sum(tenant.memory for tenant in tenants))
    return f"{cus}, {format_bytes(memory)}"


def _svg_text(x: int, y: int, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{html.escape(text)}</text>'


def _svg_cell(x: int, y: int, owner: int | None, hint: str) -> str:
    if owner is None:
        fill = "#e8e8e8"
    else:
        hue = HUES[owner % len(HUES)]
        fill = f"hsl({hue},65%,{60 - 12 * (owner // len(HUES) % 3)}%)"
    side = CELL - 2
    return (
        f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}">'
        f"<title>{html.escape(hint)}</title></rect>"
    )
