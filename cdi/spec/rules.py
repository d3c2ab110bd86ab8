"""The rules for CDI specs that the reference implementation enforces and the schema lacks.

Taken from what the reference packages (specification 1.1.0) accept and refuse. A finding names the
device, the field, the value and the rule.
"""

from __future__ import annotations

import string
from collections.abc import Iterator

from cdi.spec import cdiversion
from cdi.spec.edits import ContainerEdits, DeviceNode, Hook, Mount, NetDevice, Spec

ALPHANUMERIC = frozenset(string.ascii_letters + string.digits)
LETTERS = frozenset(string.ascii_letters)
HOOK_NAMES = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
NODE_TYPES = frozenset({"", "b", "c", "u", "p"})
PERMISSIONS = frozenset("rwm")
ANNOTATIONS_MAX = 256 << 10
"""Bytes of all keys and values of one place."""

INTERFACE_NAME_MAX = 15
"""Characters of a network interface's name in Linux."""


def findings(spec: Spec) -> Iterator[str]:
    """Yield everything that the reference implementation would refuse in a spec.

    The spec has the types that the schema asks for.
    """
    yield from _version(spec)
    vendor, slash, class_ = spec["kind"].partition("/")
    if not slash:
        yield f"kind: {spec['kind']!r} must be <vendor>/<class>"
    else:
        yield from _qualifier("vendor", vendor, "_-.", "letters, digits, '-', '_' and '.'")
        yield from _qualifier("class", class_, "_-.", "letters, digits, '-', '_' and '.'")
    yield from _annotations("annotations", spec.get("annotations", {}))
    yield from _edits("containerEdits", spec.get("containerEdits", {}))
    if not spec["devices"]:
        yield "devices: at least one is needed"
    seen = set()
    for device in spec["devices"]:
        name = device["name"]
        where = f"device {name!r}"
        yield from _device_name(where, name)
        if name in seen:
            yield f"{where}: name: two devices have it, and one name may stand for one only"
        seen.add(name)
        if not any(device["containerEdits"].values()):
            yield f"{where}: containerEdits: empty, and one empty edit makes the file invalid"
        yield from _annotations(f"{where}: annotations", device.get("annotations", {}))
        yield from _edits(f"{where}: containerEdits", device["containerEdits"])


def _version(spec: Spec) -> Iterator[str]:
    declared = spec["cdiVersion"].removeprefix("v")
    if declared not in cdiversion.KNOWN:
        yield f"cdiVersion: {spec['cdiVersion']!r} is not one of {', '.join(cdiversion.KNOWN)}"
        return
    version, reason = cdiversion.needed(spec)
    if cdiversion.KNOWN.index(declared) < cdiversion.KNOWN.index(version):
        yield f"cdiVersion: {declared!r} is lower than {version}, needed for {reason}"


def _qualifier(what: str, text: str, extra: str, rule: str) -> Iterator[str]:
    if not text:
        yield f"kind: the {what} is empty"
    elif text[0] not in LETTERS:
        yield f"kind: the {what} {text!r} must start with a letter"
    elif text[-1] not in ALPHANUMERIC:
        yield f"kind: the {what} {text!r} must end with a letter or digit"
    elif not set(text) <= ALPHANUMERIC | set(extra):
        yield f"kind: the {what} {text!r} may have {rule} only"


def _device_name(where: str, name: str) -> Iterator[str]:
    if not name:
        yield f"{where}: name: empty"
    elif name[0] not in ALPHANUMERIC or name[-1] not in ALPHANUMERIC:
        yield f"{where}: name: must start and end with a letter or digit"
    elif not set(name) <= ALPHANUMERIC | set("_-.:"):
        yield f"{where}: name: may have letters, digits, '_', '-', '.' and ':' only"


def _annotations(where: str, annotations: dict[str, str]) -> Iterator[str]:
    """Check keys as Kubernetes does: ``[prefix/]name``, the name of at most 63 characters.

    Of keys the case does not matter, and all of it together has a bound.
    """
    size = len("".join([*annotations, *annotations.values()]).encode())
    if size > ANNOTATIONS_MAX:
        yield f"{where}: {size} bytes, more than {ANNOTATIONS_MAX}"
    for key in annotations:
        prefix, slash, name = key.lower().rpartition("/")
        good = (
            0 < len(name) <= 63
            and name[0] in ALPHANUMERIC
            and name[-1] in ALPHANUMERIC
            and set(name) <= ALPHANUMERIC | set("_-.")
        )
        labels = prefix.split(".") if slash else []
        good_prefix = len(prefix) <= 253 and all(
            label
            and label[0] != "-"
            and label[-1] != "-"
            and set(label) <= set(string.ascii_lowercase + string.digits + "-")
            for label in labels
        )
        if not good or not good_prefix:
            yield f"{where}: {key!r} must be [<DNS name>/]<name of 1 to 63 characters>"


def _edits(where: str, edits: ContainerEdits) -> Iterator[str]:
    yield from _env(f"{where}.env", edits.get("env", []))
    for node in edits.get("deviceNodes", []):
        yield from _device_node(f"{where}.deviceNodes", node)
    for mount in edits.get("mounts", []):
        yield from _mount(f"{where}.mounts", mount)
    for hook in edits.get("hooks", []):
        yield from _hook(f"{where}.hooks", hook)
    yield from _net_devices(f"{where}.netDevices", edits.get("netDevices", []))
    closure = str(edits.get("intelRdt", {}).get("closID", ""))
    if closure in {".", ".."} or "/" in closure or "\n" in closure:
        yield f"{where}.intelRdt: closID: {closure!r} must be a plain name"


def _env(where: str, entries: list[str]) -> Iterator[str]:
    for entry in entries:
        if entry.find("=") < 1:
            yield f"{where}: {entry!r} must be NAME=value"


def _device_node(where: str, node: DeviceNode) -> Iterator[str]:
    if not node["path"]:
        yield f"{where}: path: empty"
    if node.get("type", "") not in NODE_TYPES:
        yield f"{where}: type: {node['type']!r} must be b, c, u or p, or be left out"
    if not set(node.get("permissions", "")) <= PERMISSIONS:
        yield f"{where}: permissions: {node['permissions']!r} may have r, w and m only"


def _mount(where: str, mount: Mount) -> Iterator[str]:
    if not mount["hostPath"]:
        yield f"{where}: hostPath: empty"
    if not mount["containerPath"]:
        yield f"{where}: containerPath: empty"


def _hook(where: str, hook: Hook) -> Iterator[str]:
    if hook["hookName"] not in HOOK_NAMES:
        names = ", ".join(sorted(HOOK_NAMES))
        yield f"{where}: hookName: {hook['hookName']!r} must be one of {names}"
    if not hook["path"]:
        yield f"{where}: path: empty"
    if hook.get("timeout", 1) < 1:
        yield (
            f"{where}: timeout: {hook['timeout']} kills the hook at once; leave it out, or give "
            "seconds"
        )
    yield from _env(f"{where}: env", hook.get("env", []))


def _net_devices(where: str, devices: list[NetDevice]) -> Iterator[str]:
    for field in ("hostInterfaceName", "name"):
        names = [str(device.get(field)) for device in devices]
        for name in names:
            if not 0 < len(name) <= INTERFACE_NAME_MAX or "/" in name or ":" in name:
                yield (
                    f"{where}: {field}: {name!r} must be an interface name of 1 to "
                    f"{INTERFACE_NAME_MAX} characters"
                )
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"{where}: {field}: {name!r} is given twice"
