"""What keeps a node right: the usage regions' filesystem, units, and no other plugin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdi.doctor.finding import Finding
from cdi.install.units import REFRESH
from cdi.state import usage

UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "run/systemd/system")

AMD_SOCKET = "var/lib/kubelet/device-plugins/amd.com_gpu"
"""Of AMD's own device plugin, whose framework names it by the resource."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What keeps a node right."""

    usage_dir: Path
    bounded: bool
    systemd: bool
    enabled: bool
    """Whether the spec is written anew at each boot."""
    other_plugin: bool
    """Whether kubelet's directory has the socket of AMD's own plugin."""


def read(root: Path, usage_dir: Path) -> Upkeep:
    """Look at what keeps a node right."""
    # A link that leads nowhere here may lead somewhere on the system that this is the root of.
    wants = [place for folder in UNIT_FOLDERS for place in (root / folder).glob("*.wants")]
    return Upkeep(
        usage_dir,
        usage.bounded(usage_dir) is not None,
        (root / "run/systemd/system").is_dir(),
        any(os.path.lexists(place / REFRESH) for place in wants),
        (root / AMD_SOCKET).is_socket(),
    )


def findings(upkeep: Upkeep) -> Iterator[Finding]:
    """Yield what follows."""
    if upkeep.bounded:
        yield Finding("works", "usage regions have a place", str(upkeep.usage_dir))
    else:
        yield Finding(
            "less",
            "usage regions have no place",
            f"{upkeep.usage_dir} is no filesystem of its own",
            "the processes of a share count their memory in the container's own /tmp, and what a "
            "share uses cannot be seen from outside",
            "as root: amd-cdi install",
        )
    if upkeep.systemd and not upkeep.enabled:
        yield Finding(
            "less",
            "nothing writes the spec anew at boot",
            f"{REFRESH} is not enabled",
            "after a boot with other device numbers containers do not start, and usage regions are "
            "gone",
            f"systemctl enable {REFRESH}, or as root: amd-cdi install",
        )
    elif upkeep.systemd:
        yield Finding("works", "the spec is written anew at boot", f"{REFRESH} is enabled")
    if upkeep.other_plugin:
        yield Finding(
            "less",
            "AMD's own device plugin serves amd.com/gpu",
            f"its socket is /{AMD_SOCKET}",
            "kubelet takes one plugin for a resource, and pods get whole GPUs by it",
            "remove its DaemonSet, or turn it off in the AMD GPU operator",
        )
