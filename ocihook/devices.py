"""Whether the container gets AMD GPUs beyond its share.

KFD lets a process use a GPU only if it may open its render node, so the nodes that a container can
open decide which GPUs it can reach, whatever its environment says.
"""

from __future__ import annotations

import os
import stat

from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container, Rule
    from ocihook.share import Share

DRM_MAJOR = 226
AMD_VENDOR = b"0x1002"
FOLDERS = ("/dev", "/dev/dri")
"""Folders whose bind mount brings every GPU's nodes."""

HINT = (
    "start it without --privileged, without /dev/dri, and with no GPU but the share; "
    "where that is wanted, generate with --allow-extra-devices"
)


def check(container: Container, share: Share, sysroot: str) -> None:
    """Raise Refusal if a device, a mount or a cgroup rule reaches an AMD GPU beyond the share."""
    own = share.minors()
    expected = f"no AMD GPU beyond share {share.name} in {container.where}"
    for device in container.devices:
        if device.kind in "cu" and is_foreign(device.major, device.minor, own, sysroot):
            raise Refusal(expected, f"the device {device.path[:200]!r} in linux.devices", HINT)
    for mount in container.mounts:
        if mount.kind == "devtmpfs":
            raise Refusal(expected, f"a devtmpfs at {mount.destination[:200]!r}", HINT)
        if mount.kind == "bind" and _brings_nodes(mount.source, own, sysroot):
            raise Refusal(expected, f"the mount of {mount.source[:200]!r}", HINT)
    rule = open_rule(container.rules, own)
    if rule is not None:
        major = "*" if rule.major is None else rule.major
        minor = "*" if rule.minor is None else rule.minor
        found = f"the rule `{rule.kind} {major}:{minor} {rule.access}` in linux.resources.devices"
        if rule.major != DRM_MAJOR or rule.minor is None:
            raise Refusal(expected, found, HINT)
        if is_foreign(DRM_MAJOR, rule.minor, own, sysroot):
            raise Refusal(expected, found, HINT)
    if "CAP_MKNOD" in container.capabilities and not any(map(_denies_all, container.rules)):
        found = "CAP_MKNOD and no rule in linux.resources.devices that denies all devices"
        raise Refusal(expected, found, HINT)


def is_foreign(major: int, minor: int, own: set[int], sysroot: str) -> bool:
    """Whether a character device is the DRM node of an AMD GPU beyond the share's own minors.

    A node whose vendor cannot be read counts as AMD's: partitions hang on a platform device, which
    has none.
    """
    if major != DRM_MAJOR or minor in own:
        return False
    path = f"{sysroot}/sys/dev/char/{major}:{minor}/device/vendor"
    try:
        with open(path, "rb") as file:
            return file.read(16).strip() == AMD_VENDOR
    except OSError:
        return True


def open_rule(rules: list[Rule], own: set[int]) -> Rule | None:
    """Return the last-standing rule that lets a DRM node beyond ``own`` be read or written."""
    found = None
    for rule in rules:
        if _denies_all(rule):
            found = None
        elif _opens(rule) and not (rule.major == DRM_MAJOR and rule.minor in own):
            found = found or rule
    return found


def _opens(rule: Rule) -> bool:
    return (
        rule.allow
        and rule.kind in "ac"
        and rule.major in {None, DRM_MAJOR}
        and bool(set(rule.access) & {"r", "w"})
    )


def _denies_all(rule: Rule) -> bool:
    return (
        not rule.allow
        and rule.kind in "ac"
        and rule.major is None
        and rule.minor is None
        and {"r", "w"} <= set(rule.access)
    )


def _brings_nodes(source: str, own: set[int], sysroot: str) -> bool:
    """Whether a bind mount of this host path brings DRM nodes of GPUs beyond the share."""
    real = os.path.realpath(source)
    if real == "/" or real in FOLDERS:
        return True
    try:
        status = os.stat(real)
    except OSError:
        return False
    if not stat.S_ISCHR(status.st_mode):
        return real.startswith("/dev/dri/")
    return is_foreign(os.major(status.st_rdev), os.minor(status.st_rdev), own, sysroot)
