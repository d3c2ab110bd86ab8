"""Configuration files as nested mappings, and values in them by their path of keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[str, ...]
"""The keys that lead to a value, outermost first."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Stands for the value of a key that is not there."""


MISSING: Final = Missing()

Edit = Callable[[str, Path, object], str]
"""Returns a text with another value at a path, MISSING to take it away, and else unchanged."""


def value_at(document: Mapping[str, Any], path: Path) -> Any:
    """Return the value at a path, MISSING if there is none."""
    found: Any = document
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return MISSING
        found = found[key]
    return found


def with_value(document: Mapping[str, Any], path: Path, value: object) -> dict[str, Any]:
    """Return a document with another value at a path, which is made if it is missing."""
    changed = deepcopy(dict(document))
    *above, key = path
    place = changed
    for name in above:
        if value is MISSING and name not in place:
            return changed
        place = place.setdefault(name, {})
    if value is MISSING:
        place.pop(key, None)
    else:
        place[key] = value
    return changed
