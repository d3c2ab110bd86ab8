"""The runtimes of a machine: which are there, in what version, and where their files lie."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdi.errors import TemporaryError
from cdi.plan.options import Options
from cdi.runtime import layers, version
from cdi.runtime.change import Change, read
from cdi.runtime.containerd import Containerd
from cdi.runtime.docker import Docker
from cdi.runtime.layers import Layers
from cdi.runtime.version import Version
from cdi.spec import hooksd

Configuration = Containerd | Docker | Layers

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOOKS = "usr/share/containers/oci/hooks.d/amd-cdi.json"
"""Of the two usual folders this one is read by Podman 4 as well."""

SECONDS = 30


@dataclass(frozen=True, slots=True)
class Kind:
    """A container runtime that can be configured."""

    name: str
    program: str
    """What reads the files and tells its version; of Docker the daemon, not the command."""
    config: str
    """Main file of root's, below the root."""
    user_config: str
    """That of another user's, below the user's folder of configuration; empty if there is none."""
    unit: str
    """Of systemd, that reads the file when it starts; empty if each command does."""


_KINDS = (
    Kind("containerd", "containerd", "etc/containerd/config.toml", "", "containerd"),
    Kind("docker", "dockerd", "etc/docker/daemon.json", "docker/daemon.json", "docker"),
    Kind("crio", "crio", "etc/crio/crio.conf", "", "crio"),
    Kind("podman", "podman", "etc/containers/containers.conf", "containers/containers.conf", ""),
)
KINDS = {kind.name: kind for kind in _KINDS}


def program(kind: Kind) -> str | None:
    """Return where a runtime is installed on this machine, None if it is not."""
    path = f"{os.environ.get('PATH', '')}:{PATH}"
    return shutil.which(kind.program, path=path)


def version_of(place: str) -> Version | None:
    """Return what a runtime says its version is, None if it does not say."""
    try:
        done = subprocess.run(  # noqa: S603 -- a program of the machine's
            [place, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return version.parse(done.stdout) if done.returncode == 0 else None


def default_config(kind: Kind, root: Path) -> Path:
    """Return the main file that a runtime of the asking user reads."""
    if os.geteuid() != 0 and kind.user_config:
        return _user_folder() / kind.user_config
    return root / kind.config


def configuration(
    kind: Kind, path: Path, root: Path, found: Version | None, options: Options
) -> Configuration:
    """Return the configuration of a runtime whose main file this is."""
    if kind.name == "containerd":
        return Containerd.read(path, found)
    if kind.name == "docker":
        return Docker.read(path, found)
    text = json.dumps(hooksd.configuration(options), indent=2) + "\n"
    hook = Change(root / HOOKS, read(root / HOOKS), text)
    family = layers.CRIO if kind.name == "crio" else layers.PODMAN
    return Layers.read(family, _mains(kind, path, root), hook, found)


def restart(kind: Kind) -> None:
    """Let a runtime that runs read its configuration anew; raises TemporaryError if it cannot."""
    command = ["systemctl", "restart", kind.unit]
    try:
        done = subprocess.run(  # noqa: S603 -- a fixed command
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        reason = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        reason = str(error)
    if reason:
        raise TemporaryError(
            f"cannot restart {kind.name}: {' '.join(command)}: {reason}",
            "its configuration is written: restart it by your own means",
        )


def _mains(kind: Kind, path: Path, root: Path) -> Sequence[Path]:
    """Return the main files that a runtime reads, the one that counts most last."""
    if kind.name != "podman" or path != default_config(kind, root):
        return [path]
    shared = [root / "usr/share/containers/containers.conf", root / kind.config]
    return [*[one for one in shared if one != path], path]


def _user_folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
