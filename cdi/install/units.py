"""The systemd units of a node, as text, and whether there is a systemd."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FOLDER = "etc/systemd/system"
REFRESH = "amd-cdi-refresh.service"
TARGET = "multi-user.target"
MEBIBYTES = 64
"""Of the usage regions' filesystem: some 36 KiB for a share."""

MOUNT_OPTIONS = f"size={MEBIBYTES}m,mode=0755,nosuid,nodev,noexec"

MOUNT = """\
[Unit]
Description=Usage regions of AMD GPU shares

[Mount]
What=tmpfs
Where={usage}
Type=tmpfs
Options={options}

[Install]
WantedBy={target}
"""

SERVICE = """\
[Unit]
Description=CDI specs of AMD GPUs
# The driver loads while udev settles. A runtime that starts earlier would not find the devices.
Wants=systemd-udev-settle.service {mount}
After=systemd-udev-settle.service systemd-modules-load.service local-fs.target {mount}
Before=containerd.service crio.service docker.service podman-restart.service kubelet.service

[Service]
Type=oneshot
ExecStart={command} refresh

[Install]
WantedBy={target}
"""


@dataclass(frozen=True, slots=True)
class Units:
    """What systemd is to do on a node."""

    command: str
    """Of amd-cdi."""
    usage: PurePosixPath
    """Where the usage regions lie."""

    @property
    def mount(self) -> str:
        """Name of the unit that mounts the usage regions' filesystem: systemd derives it so."""
        return mount_unit(self.usage)

    @property
    def files(self) -> Mapping[str, bytes]:
        """Text of each unit by its name."""
        command = _quoted(self.command)
        service = SERVICE.format(command=command, mount=self.mount, target=TARGET)
        mount = MOUNT.format(usage=self.usage, options=MOUNT_OPTIONS, target=TARGET)
        return {REFRESH: service.encode(), self.mount: mount.encode()}


def mount_unit(path: PurePosixPath) -> str:
    """Return the name of the unit that mounts something at a path, by systemd.unit(5)."""
    words = str(path).strip("/")
    escaped = re.sub(rb"[^\w:./]|^\.", _escape, words.encode())
    return escaped.decode().replace("/", "-") + ".mount"


def _escape(match: re.Match[bytes]) -> bytes:
    return b"\\x%02x" % match[0][0]


def _quoted(command: str) -> str:
    """Return a command as systemd.service(5) reads it back."""
    for character, spelling in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        command = command.replace(character, spelling)
    return f'"{command}"'


def is_there(sysroot: Path) -> bool:
    """Whether a system is run by systemd, or will be once it is started."""
    if sysroot == Path("/"):
        return Path("/run/systemd/system").is_dir()
    places = ("usr/lib/systemd/systemd", "lib/systemd/systemd")
    return any((sysroot / place).exists() for place in places)
