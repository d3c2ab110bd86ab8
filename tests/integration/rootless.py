"""A user without root on a sandbox's machine, and podman and docker as he runs them."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import debian, need
from tests.integration.container import Container, Start
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


_DOCKER_CONFIGURATION = """
mkdir -p .config/docker
cat >.config/docker/daemon.json <<END
{
  "bridge": "none",
  "iptables": false,
  "ip6tables": false,
  "storage-driver": "vfs",
  "data-root": "/var/lib/$(id -un)"
}
END
"""

_DOCKER = """
rootlesskit --state-dir="$XDG_RUNTIME_DIR/rootlesskit" --net=host --copy-up=/etc --copy-up=/run \\
    --propagation=rslave sh -c '
        real=$(realpath /etc/cdi)
        rm /etc/cdi
        mkdir /etc/cdi
        mount --rbind "$real" /etc/cdi
        exec dockerd --host="unix://$XDG_RUNTIME_DIR/docker.sock"
    ' </dev/null >"$HOME/docker.log" 2>&1 &
export DOCKER_HOST="unix://$XDG_RUNTIME_DIR/docker.sock"
# Not by `docker version`, which asks rootlesskit for its network.
for _ in $(seq 150); do
    docker ps >/dev/null 2>&1 && exit
    sleep 0.2
done
tail -n 20 "$HOME/docker.log" >&2
exit 1
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

    def amd_cdi(
        self, *words: str, groups: bool = True, environment: Mapping[str, str] | None = None
    ) -> Outcome:
        """Run amd-cdi as him."""
        command = [sys.executable, "-m", "cdi", *words]
        variables = {"PYTHONPATH": str(REPOSITORY), **(environment or {})}
        return self.run(command, groups=groups, environment=variables)

    def podman(self, runtime: str, container: Container, *options: str) -> Outcome:
        """Run a container with this OCI runtime."""
        command = ["podman", f"--runtime={runtime}", "run", "--rm", "--network=none", *options]
        command += [f"--device={name}" for name in container.cdi]
        return self.run([*command, container.image.name, *container.command])


@contextmanager
def docker(user: Tenant, images: Sequence[Image]) -> Iterator[Start]:
    """Docker 26 of Debian 13 as this user runs it: by rootlesskit, with what amd-cdi configures.

    What Debian's dockerd-rootless.sh does, without a network. In the namespace that rootlesskit
    makes, /etc/cdi is a link, which CDI's library does not follow: Docker 28 mounts the folder
    itself there, and so does this.
    """
    files = need.fetched(lambda: debian.unpacked("trixie", "docker.io", "docker-cli"))
    containerd = need.fetched(lambda: debian.unpacked("trixie", "containerd"))
    rootlesskit = need.fetched(lambda: debian.unpacked("bookworm", "rootlesskit"))
    programs = [files / "usr/sbin/dockerd", files / "usr/bin/docker"]
    folders = [containerd / "usr/bin", rootlesskit / "usr/bin"]
    for program in [*programs, *(path for folder in folders for path in folder.iterdir())]:
        # The cache may lie where the user may not go.
        shutil.copy(program, user.sandbox.path("/usr/local/bin"))
    # Below /run all is links where rootlesskit runs, and runc takes no root filesystem behind one.
    user.sandbox.must(["install", "-d", f"--owner={NAME}", f"/var/lib/{NAME}"])
    configured = user.run(["sh", "-c", _DOCKER_CONFIGURATION])
    assert configured.status == 0, configured
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    configured = user.amd_cdi("runtime", "configure", "--runtime=docker", environment=path)
    assert configured.status == 0, configured
    started = user.run(["sh", "-c", _DOCKER], environment=path)
    assert started.status == 0, started
    command = ["docker", f"--host=unix:///run/user/{NUMBER}/docker.sock"]
    for image in images:
        user.sandbox.must(["cp", image_archive(image, user.sandbox.folder / "i.tar"), "/run/i.tar"])
        user.sandbox.must(["chmod", "644", "/run/i.tar"])
        loaded = user.run([*command, "load", "--input=/run/i.tar"], environment=path)
        assert loaded.status == 0, loaded

    def start(container: Container) -> Outcome:
        words = ["run", "--rm", "--network=none", *(f"--device={name}" for name in container.cdi)]
        run = [*command, *words, container.image.name, *container.command]
        return user.run(run, environment=path)

    yield start


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
