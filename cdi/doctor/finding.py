"""What was found on a node, what follows from it, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["works", "less", "fails"]
"""All is well; shares work with something less; shares do not work."""

LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found on a node, what follows from it, and what to do."""

    level: Level
    what: str
    evidence: str
    consequence: str = ""
    remedy: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Return what all of it comes to."""
    return LEVELS[max((LEVELS.index(finding.level) for finding in findings), default=0)]
