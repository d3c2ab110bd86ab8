"""What a runtime does when a container asks for a CDI device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What a runtime does when a container asks for a CDI device."""

    on: bool
    """Whether it gives the device; otherwise it leaves it out or refuses."""
    spec_dirs: tuple[str, ...]
    """Where it looks for specs, the one that wins last."""
    source: str
    """What says so, such as a file."""

    def reads(self, spec_dir: str) -> bool:
        """Whether a container gets the devices of the specs in a directory."""
        return self.on and spec_dir in self.spec_dirs
