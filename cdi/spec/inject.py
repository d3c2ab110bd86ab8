"""What a runtime makes of an OCI configuration when it injects CDI devices.

Follows the reference implementation: environment of the same name is replaced, a device node or
mount of the same path in the container is replaced, mounts are sorted by depth, hooks are appended.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError
from cdi.files import os_error
from cdi.spec.edits import ContainerEdits, DeviceNode


def inject(config: Mapping[str, Any], edits: ContainerEdits, sysroot: Path) -> dict[str, Any]:
    """Return an OCI configuration with edits applied; device nodes are looked up in the sysroot.

    Raises PermanentError if a device node is missing, or if the configuration has not the types
    of one.
    """
    result = dict(config)
    try:
        if edits.get("env"):
            result["process"] = _with_env(result.get("process", {}), edits["env"])
        for node in edits.get("deviceNodes", []):
            user = result.get("process", {}).get("user", {})
            result["linux"] = _with_device(result.get("linux", {}), node, user, sysroot)
        if edits.get("mounts"):
            result["mounts"] = _with_mounts(result.get("mounts", []), edits)
        for hook in edits.get("hooks", []):
            hooks = {**result.get("hooks", {})}
            entry = {key: value for key, value in hook.items() if key != "hookName"}
            hooks[hook["hookName"]] = [*hooks.get(hook["hookName"], []), entry]
            result["hooks"] = hooks
        if edits.get("additionalGids"):
            process = dict(result.get("process", {}))
            user = dict(process.get("user", {}))
            present = user.get("additionalGids", [])
            user["additionalGids"] = [
                *present,
                *(gid for gid in edits["additionalGids"] if gid not in present and gid != 0),
            ]
            result["process"] = process | {"user": user}
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise PermanentError(
            f"the OCI configuration has not the types that the OCI specification gives it: {error}",
            "give a config.json of a container",
        ) from error
    return result


def _with_env(process: Mapping[str, Any], env: list[str]) -> dict[str, Any]:
    entries = list(process.get("env", []))
    for new in env:
        name = f"{new.partition('=')[0]}="
        places = [place for place, old in enumerate(entries) if old.startswith(name)]
        if places:
            entries[places[0]] = new
        else:
            entries.append(new)
    return {**process, "env": entries}


def _with_device(
    linux: Mapping[str, Any], node: DeviceNode, user: Mapping[str, int], sysroot: Path
) -> dict[str, Any]:
    device: dict[str, Any] = {"path": node["path"]} | _identity(node, sysroot)
    if "fileMode" in node:
        device["fileMode"] = node["fileMode"]
    # A node that says nothing of its owner belongs to the user of the container.
    device |= {key: user[key] for key in ("uid", "gid") if user.get(key)}
    device |= {key: node[key] for key in ("uid", "gid") if key in node}
    devices = [old for old in linux.get("devices", []) if old["path"] != node["path"]]
    resources = dict(linux.get("resources", {}))
    if device["type"] in {"b", "c"}:
        rule = {
            "allow": True,
            "type": device["type"],
            "major": device["major"],
            "minor": device["minor"],
            "access": node.get("permissions") or "rwm",
        }
        rules = resources.get("devices", [])
        resources["devices"] = rules if rule in rules else [*rules, rule]
    return {**linux, "devices": [*devices, device], "resources": resources}


def _identity(node: DeviceNode, sysroot: Path) -> dict[str, Any]:
    """Return type, major and minor of a node, from the spec or from the host's node."""
    if node.get("type") and ("major" in node or node["type"] == "p"):
        return {key: node[key] for key in ("type", "major", "minor") if key in node}
    path = sysroot / (node.get("hostPath") or node["path"]).lstrip("/")
    try:
        status = path.stat()
    except OSError as error:
        raise os_error("look up the device node", path, error) from error
    kinds = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        raise PermanentError(
            f"a device node was expected at {path}", "check that the driver is loaded"
        )
    return {"type": kind, "major": os.major(status.st_rdev), "minor": os.minor(status.st_rdev)}


def _with_mounts(mounts: list[dict[str, Any]], edits: ContainerEdits) -> list[dict[str, Any]]:
    new = {
        mount["containerPath"]: {
            "destination": mount["containerPath"],
            "source": mount["hostPath"],
            **({"type": mount["type"]} if mount.get("type") else {}),
            "options": mount.get("options", []),
        }
        for mount in edits["mounts"]
    }
    kept = [mount for mount in mounts if mount["destination"] not in new]
    # Deeper mounts come later, so that none is hidden by one above it; sorted() is stable.
    return sorted([*kept, *new.values()], key=lambda mount: _depth(mount["destination"]))


def _depth(path: str) -> int:
    return len([part for part in path.split("/") if part])
