"""Which version of the CDI specification a spec needs.

A runtime refuses a spec that declares less than it uses, and one that declares a version the
runtime does not know, so a spec declares the lowest that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cdi.spec.edits import ContainerEdits, Spec

KNOWN = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""Versions that the reference implementation knows, ascending."""


def needed(spec: Spec) -> tuple[str, str]:
    """Return the lowest version that a spec may declare, and what it is needed for."""
    for version, reason, uses in reversed(FEATURES):
        if uses(spec):
            return version, reason
    return KNOWN[0], "nodes, environment, mounts and hooks"


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.get("containerEdits", {})
    for device in spec.get("devices", []):
        yield device.get("containerEdits", {})


def _mount_type(spec: Spec) -> bool:
    return any(mount.get("type") for edits in _all_edits(spec) for mount in edits.get("mounts", []))


def _host_path(spec: Spec) -> bool:
    return any(
        node.get("hostPath") for edits in _all_edits(spec) for node in edits.get("deviceNodes", [])
    )


def _leading_digit(spec: Spec) -> bool:
    return any(device.get("name", "")[:1].isdigit() for device in spec.get("devices", []))


def _annotations(spec: Spec) -> bool:
    return bool(spec.get("annotations")) or any(
        device.get("annotations") for device in spec.get("devices", [])
    )


def _dotted_class(spec: Spec) -> bool:
    return "." in spec.get("kind", "").partition("/")[2]


def _uses(key: str) -> Callable[[Spec], bool]:
    return lambda spec: any(edits.get(key) for edits in _all_edits(spec))


FEATURES: tuple[tuple[str, str, Callable[[Spec], bool]], ...] = (
    ("0.4.0", "a mount with a type", _mount_type),
    ("0.5.0", "a device node with a hostPath", _host_path),
    ("0.5.0", "a device name that starts with a digit", _leading_digit),
    ("0.6.0", "annotations", _annotations),
    ("0.6.0", "a class with a dot", _dotted_class),
    ("0.7.0", "additionalGids", _uses("additionalGids")),
    ("0.7.0", "intelRdt", _uses("intelRdt")),
    ("1.1.0", "netDevices", _uses("netDevices")),
)
"""Ascending by version."""
