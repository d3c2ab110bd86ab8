"""How results and warnings are printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence


def write(text: str) -> None:
    """Print text that brings its own line ends."""
    sys.stdout.write(text)


def lines(texts: Iterable[str]) -> None:
    """Print lines."""
    write("".join(f"{text}\n" for text in texts))


def document(value: object) -> None:
    """Print a value as JSON."""
    write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def warn(texts: Iterable[str]) -> None:
    """Print warnings where they are in nobody's way."""
    sys.stderr.write("".join(f"amd-cdi: warning: {text}\n" for text in texts))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print columns under their heads, each as wide as its widest cell."""
    cells = [tuple(heads), *(tuple(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    lines(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
