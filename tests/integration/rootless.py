"""A user without root on a sandbox's machine, and podman as he runs it."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import need
from tests.integration.container import Container
from tests.integration.image import Image
from tests.integration.image import archive as image_archive
from tests.integration.product import REPOSITORY
from tests.integration.sandbox import Outcome, Sandbox

NAME = "tenant"
NUMBER = 4242
GROUP = "gpu-nodes"
"""What the device nodes of GPUs belong to, as to `render` on a real machine."""

# Arguments: the user, his number, the group. What he keeps is in memory.
_USER = """
set -eu
groupadd "$3"
useradd --uid "$2" --user-group --no-create-home --home-dir "/run/$1" --shell /bin/sh "$1"
usermod --add-subuids 200000-265535 --add-subgids 200000-265535 "$1"
mkdir -p "/run/$1/.config/containers" "/run/user/$2"
cat >"/run/$1/.config/containers/containers.conf"
chown -R "$1:" "/run/$1" "/run/user/$2"
chgrp "$3" /dev/kfd /dev/dri/*
chmod 660 /dev/kfd /dev/dri/*
"""

# Arguments: a folder that others may not reach, what is wanted below it. Nothing else of it shows.
_OPEN = """
set -eu
mount --bind "$2" /mnt
mount -t tmpfs -o mode=755 open "$1"
mkdir -p "$2"
mount --bind /mnt "$2"
umount /mnt
"""

_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


@dataclass(frozen=True)
class Tenant:
    sandbox: Sandbox

    def run(
        self,
        command: Sequence[str | Path],
        *,
        groups: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Run a command as he does after logging in, in the group of GPUs or out of it."""
        words = ["setpriv", f"--reuid={NUMBER}", f"--regid={NUMBER}"]
        words += [f"--groups={GROUP}" if groups else "--clear-groups", "--inh-caps=-all"]
        variables = {
            "HOME": f"/run/{NAME}",
            "XDG_RUNTIME_DIR": f"/run/user/{NUMBER}",
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            **(environment or {}),
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        return self.sandbox.run([*words, "env", "-i", f"--chdir=/run/{NAME}", *settings, *command])

    def amd_cdi(self, *words: str, groups: bool = True) -> Outcome:
        """Run amd-cdi as him."""
        command = [sys.executable, "-m", "cdi", *words]
        return self.run(command, groups=groups, environment={"PYTHONPATH": str(REPOSITORY)})

    def podman(self, runtime: str, container: Container, *options: str) -> Outcome:
        """Run a container with this OCI runtime."""
        command = ["podman", f"--runtime={runtime}", "run", "--rm", "--network=none", *options]
        command += [f"--device={name}" for name in container.cdi]
        return self.run([*command, container.image.name, *container.command])


def tenant(sandbox: Sandbox, images: Sequence[Image]) -> Tenant:
    """A new user, in whose podman these images are."""
    need.program("newuidmap")
    sandbox.must(["sh", "-c", _USER, "sh", NAME, str(NUMBER), GROUP], stdin=_CONFIGURATION)
    made = Tenant(sandbox)
    for image in images:
        tarball = image_archive(image, sandbox.folder / "image.tar")
        sandbox.must(["cp", tarball, "/run/image.tar"])
        sandbox.must(["chmod", "644", "/run/image.tar"])
        outcome = made.run(["podman", "load", "--input=/run/image.tar"])
        assert outcome.status == 0, outcome
    for wanted in {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}:
        closed = [path for path in reversed(wanted.parents) if not path.stat().st_mode & 1]
        if closed:
            sandbox.must(["sh", "-c", _OPEN, "sh", closed[0], wanted])
    return made
