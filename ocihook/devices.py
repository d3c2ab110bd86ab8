"""Whether the container gets AMD GPUs beyond its share.

KFD lets a process use a GPU only if it may open its render node, so the nodes that a container can
open decide which GPUs it can reach, whatever its environment says.
"""

from __future__ import annotations

import os
import stat

from ocihook.files import read_file
from ocihook.refusal import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ocihook.bundle import Container, Rule
    from ocihook.share import Share

DRM_MAJOR = 226
AMD_VENDOR = b"0x1002"
FOLDERS = ("/dev", "/dev/dri")
"""Folders whose bind mount brings every GPU's nodes."""

FIRST_UID_MAP = [b"0", b"0", b"4294967295"]
LIMIT = 64 * 1024

HINT = "start it unprivileged, without /dev/dri, and with no GPU but the share"
NODE_HINT = "where that is wanted, generate with --allow-extra-devices"


def check(container: Container, share: Share, sysroot: str) -> None:
    """Raise Refusal if a device, a mount or a cgroup rule reaches an AMD GPU beyond the share."""
    own = share.minors()
    expected = f"no AMD GPU beyond share {share.name} in {container.where}"
    for device in container.devices:
        if device.kind in {"c", "u"} and is_foreign(device.major, device.minor, own, sysroot):
            raise Refusal(
                expected, f"the device {device.path[:200]!r} in linux.devices", HINT, NODE_HINT
            )
    for mount in container.mounts:
        if mount.kind == "devtmpfs":
            raise Refusal(expected, f"a devtmpfs at {mount.destination[:200]!r}", HINT, NODE_HINT)
        if mount.kind == "bind" and _brings_nodes(mount.source, own, sysroot):
            raise Refusal(expected, f"the mount of {mount.source[:200]!r}", HINT, NODE_HINT)
    for rule in standing(container.rules):
        if _opens_foreign(rule, own, sysroot):
            major = "*" if rule.major is None else rule.major
            minor = "*" if rule.minor is None else rule.minor
            found = f"the rule `{rule.kind} {major}:{minor} {rule.access}`"
            raise Refusal(expected, f"{found} in linux.resources.devices", HINT, NODE_HINT)
    closed = any(map(_denies_all, container.rules))
    if "CAP_MKNOD" in container.capabilities and not closed and _may_make_devices(sysroot):
        found = "CAP_MKNOD and no rule in linux.resources.devices that denies all devices"
        raise Refusal(expected, found, HINT, NODE_HINT)


def _may_make_devices(sysroot: str) -> bool:
    """Whether CAP_MKNOD is worth anything here: it makes devices in the first user namespace alone.

    That is what user_namespaces(7) says. A runtime that was started without root is in another one,
    and so are all its containers.
    """
    try:
        text = read_file(f"{sysroot}/proc/self/uid_map", LIMIT)
    except OSError:
        return True
    return text.split() == FIRST_UID_MAP


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


def standing(rules: list[Rule]) -> list[Rule]:
    """Return the rules after the last one that denies every device."""
    kept: list[Rule] = []
    for rule in rules:
        kept = [] if _denies_all(rule) else [*kept, rule]
    return kept


def _opens_foreign(rule: Rule, own: set[int], sysroot: str) -> bool:
    """Whether a rule lets a DRM node of an AMD GPU beyond the share be read or written.

    A later rule that denies some of it again is not counted: what is opened is too much already.
    """
    if not rule.allow or rule.kind not in {"a", "c"} or not set(rule.access) & {"r", "w"}:
        return False
    if rule.major not in {None, DRM_MAJOR}:
        return False
    if rule.major is None or rule.minor is None:
        return True
    return is_foreign(rule.major, rule.minor, own, sysroot)


def _denies_all(rule: Rule) -> bool:
    return (
        not rule.allow
        and rule.kind in {"a", "c"}
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
