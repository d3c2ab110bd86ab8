"""What the hook will say to a container that asks for these devices, before there is one.

The hook looks at all that a container will start with, and this at what of it the devices decide:
whether one sets the environment of a share anew, and whether one brings a node of an AMD GPU beyond
the share. What a container has from elsewhere is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cdi.errors import PermanentError
from cdi.plan.amount import format_bytes
from cdi.spec.edits import ContainerEdits, Device, DeviceNode, Hook

CHECKED = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HSA_CU_MASK", "HIP_DEVICE_MEMORY_LIMIT_")
"""What the hook compares; the rest matters only where the library is what holds the share."""

RUN = ["run", "--share"]
"""How the arguments of a share's hook begin, behind its name."""

FIELDS = {"pci", "rocr", "cus", "count", "atom", "bytes", "render"}
"""What each ``--gpu`` has at least."""

DRM_MAJOR = 226
AMD_VENDOR = "0x1002"
DRM_NODE = re.compile(r"/dev/dri/(?:card|renderD)(\d+)")


@dataclass(frozen=True, slots=True)
class Told:
    """A share as the arguments of its hook tell it."""

    name: str
    gpus: tuple[Mapping[str, str], ...]
    """The fields of each GPU, by name."""
    takes_others: bool
    """Whether the container may have other GPUs as well."""

    @property
    def minors(self) -> set[int]:
        """The DRM minors that the share may use."""
        return {int(gpu[key]) for gpu in self.gpus for key in ("render", "card") if key in gpu}

    @property
    def lines(self) -> list[str]:
        """What the share is held to, a line for each GPU."""
        return [
            f"{self.name}: GPU {gpu['pci']}, CUs {gpu['cus'].replace('+', ',')} of {gpu['count']}, "
            f"in whole atoms of {gpu['atom']}, {format_bytes(int(gpu['bytes']))}"
            for gpu in self.gpus
        ]


def told(edits: ContainerEdits) -> list[Told]:
    """Return the shares that the hooks of these edits hold a container to."""
    return [_told(hook) for hook in edits.get("hooks", []) if hook.get("args", [])[1:3] == RUN]


def refusals(devices: Sequence[Device], merged: ContainerEdits, sysroot: Path) -> list[str]:
    """Say why the hook refuses a container with these devices, whose edits are merged.

    Nothing if it does not, for all that is known of the container.
    """
    return [
        f"the hook refuses a container with share {share.name} and these devices: {reason}"
        for device in devices
        for share in told(device["containerEdits"])
        for reason in _reasons(share, device, merged, sysroot)
    ]


def _reasons(share: Told, device: Device, merged: ContainerEdits, sysroot: Path) -> list[str]:
    own = [entry for entry in device["containerEdits"].get("env", []) if entry.startswith(CHECKED)]
    found = dict(entry.split("=", 1) for entry in merged.get("env", []))
    reasons = [
        f"{name} is {found[name]} and not {value}"
        for name, _, value in (entry.partition("=") for entry in own)
        if found[name] != value
    ]
    # An index counts the GPUs that the container can open: with another one, it is another GPU's.
    by_index = any(not gpu["rocr"].startswith("GPU-") for gpu in share.gpus)
    if by_index or not share.takes_others:
        others = [
            node["path"]
            for node in merged.get("deviceNodes", [])
            if _is_foreign(node, share.minors, sysroot)
        ]
        if others:
            more = f" and {len(others) - 1} more" if others[1:] else ""
            reasons.append(f"{others[0]}{more} of a GPU beyond it")
    return reasons


def _is_foreign(node: DeviceNode, own: set[int], sysroot: Path) -> bool:
    """Whether a node is one of an AMD GPU beyond these minors, as the hook finds it out."""
    if node.get("major") is not None:
        minor = node.get("minor", 0) if node["major"] == DRM_MAJOR else None
    else:
        drm = DRM_NODE.fullmatch(node.get("hostPath") or node["path"])
        minor = int(drm[1]) if drm else None
    if minor is None or minor in own:
        return False
    try:
        vendor = (sysroot / f"sys/dev/char/{DRM_MAJOR}:{minor}/device/vendor").read_text()
    except OSError:
        # That of a partition has none.
        return True
    return vendor.strip() == AMD_VENDOR


def _told(hook: Hook) -> Told:
    words = hook["args"]
    gpus = [
        dict(field.partition("=")[::2] for field in value.split(","))
        for option, value in pairwise(words)
        if option == "--gpu"
    ]
    if len(words) < 4 or not gpus or not all(gpu.keys() >= FIELDS for gpu in gpus):
        raise PermanentError(
            f"the arguments of a share were expected at the hook, found {' '.join(words)[:300]!r}",
            "write the spec anew with: amd-cdi generate",
        )
    return Told(words[3], tuple(gpus), "--allow-extra-devices" in words)
