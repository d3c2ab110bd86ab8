"""What sets two specs apart, by device."""

from __future__ import annotations

from dataclasses import dataclass

from cdi.spec.edits import Spec


@dataclass(frozen=True, slots=True)
class Difference:
    """Names of devices in the order of their specs; ``common`` names fields of the spec itself."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    common: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.common)

    @property
    def lines(self) -> list[str]:
        """The difference for people: ``+`` added, ``-`` removed, ``~`` changed."""
        return [
            *(f"+ {name}" for name in self.added),
            *(f"- {name}" for name in self.removed),
            *(f"~ {name}" for name in self.changed),
            *(f"~ ({field} of all devices)" for field in self.common),
        ]


def compare(old: Spec, new: Spec) -> Difference:
    """Return what changes when ``new`` takes the place of ``old``."""
    before = {device["name"]: device for device in old["devices"]}
    after = {device["name"]: device for device in new["devices"]}
    fields = ("cdiVersion", "kind", "containerEdits", "annotations")
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
        common=tuple(field for field in fields if old.get(field) != new.get(field)),
    )
