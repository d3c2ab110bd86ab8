"""Versions of runtimes, and what each knows of CDI."""

from __future__ import annotations

import re

Version = tuple[int, int, int]
"""Major, minor and patch."""

SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
"""Where CDI's own library looks for specs if it is told nothing else."""

LIBRARIES: dict[str, tuple[tuple[Version, str], ...]] = {
    "containerd": (
        ((1, 7, 0), "0.5.0"),
        ((1, 7, 13), "0.6.0"),
        ((1, 7, 16), "0.7.0"),
        ((2, 0, 0), "0.8.0"),
        ((2, 1, 0), "1.0.0"),
        ((2, 2, 0), "1.1.0"),
    ),
    "crio": (((1, 28, 0), "0.6.0"), ((1, 30, 0), "0.7.0"), ((1, 33, 0), "1.0.0")),
    "podman": (
        ((4, 3, 0), "0.5.0"),
        ((4, 7, 0), "0.6.0"),
        ((5, 1, 0), "0.7.0"),
        ((5, 5, 0), "1.0.0"),
    ),
}
"""From which version on a runtime knows which version of the CDI specification, ascending."""


def parse(text: str) -> Version | None:
    """Return the first version in what a program says of itself."""
    found = re.search(r"(?<![\d.])v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def newest_spec(runtime: str, version: Version | None) -> str:
    """Return the newest version of a spec that a runtime reads, empty if that is not known."""
    known = [spec for since, spec in LIBRARIES.get(runtime, ()) if version and since <= version]
    return known[-1] if known else ""


def shown(version: Version | None) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version)) if version else "of unknown version"
