"""Figures beside the bounds that they must not pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure; without a bound it is only shown."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def broken(self) -> bool:
        return self.bound is not None and self.value > self.bound

    def __str__(self) -> str:
        bound = "" if self.bound is None else f"≤ {self.bound:g}"
        verdict = "BROKEN" if self.broken else ""
        return f"{self.name:<58} {self.value:8.2f} {self.unit:<5} {bound:<6} {verdict}".rstrip()


def show(title: str, figures: Sequence[Figure]) -> bool:
    """Print figures below their title; say whether all keep to their bounds."""
    print(f"\n{title}")
    for figure in figures:
        print(f"  {figure}")
    return not any(figure.broken for figure in figures)
