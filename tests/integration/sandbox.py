"""A machine of the test's own: private mounts, processes and /dev on the kernel of the host.

What is written to /etc, /opt, /run, /usr/local, /usr/share, /var/lib and /var/log lands in memory
and goes with the sandbox, processes left behind are ended with it, and nothing of the host's own
CDI shows.
"""

import os
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

DRM_MAJOR = 226
"""Fixed by Linux (Documentation/admin-guide/devices.txt)."""

Cgroups = Literal["host", "v1", "v2"]
"""The cgroups a sandbox sees: the host's, the host's without its cgroup2, or cgroup2 alone."""

# The first process says its number outside, ignores (and so reaps) orphans, and stays until its
# standard input is closed, if only by the death of the test.
_FIRST = """
read -r pid _ </proc/self/stat
mount -t proc proc /proc
echo "$pid"
exec env --ignore-signal=CHLD cat
"""

# Arguments: the folder to build in, then `name major minor` of each extra device node.
_PRIVATE = """
set -eu
base=$1; shift
mount -t tmpfs -o mode=755 private "$base"
for path in etc opt usr/local usr/share var/lib; do
    mkdir -p "$base/$path/over" "$base/$path/work"
    mount -t overlay -o "lowerdir=/$path,upperdir=$base/$path/over,workdir=$base/$path/work" \
        overlay "/$path"
done
dev=$base/dev
mkdir -p "$dev"
mount -t tmpfs -o mode=755 dev "$dev"
mkdir "$dev/dri" "$dev/shm" "$dev/pts"
mount -t tmpfs -o mode=1777 shm "$dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$dev/pts"
ln -s pts/ptmx "$dev/ptmx"
ln -s /proc/self/fd "$dev/fd"
set -- null 1 3 zero 1 5 full 1 7 random 1 8 urandom 1 9 tty 5 0 "$@"
while [ $# -gt 0 ]; do
    mknod -m 666 "$dev/$1" c "$2" "$3"
    shift 3
done
mount --rbind "$dev" /dev
for path in /etc/cdi /run /opt/amd-cdi /var/lib/amd-cdi /var/log; do
    mkdir -p "$path"
    mount -t tmpfs -o mode=755 empty "$path"
done
"""

_CGROUPS: Mapping[Cgroups, str] = {
    "host": ":",
    "v1": "umount /sys/fs/cgroup/unified",
    "v2": "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup",
}


class SandboxError(Exception):
    """The sandbox could not be made; the message says at which step."""


@dataclass(frozen=True)
class Outcome:
    """What a user sees of a command."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Sandbox:
    pid: int
    """Of the sandbox's first process, as the host counts."""
    folder: Path
    """At the same path inside and outside."""
    cgroup: str
    """Parent of every container's cgroup; removed with the sandbox."""

    def path(self, inside: str) -> Path:
        """Where the host finds this absolute path of the sandbox."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def enter(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs this command inside."""
        entry = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--"]
        return [*entry, *(str(word) for word in command)]

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout: float = 120,
    ) -> Outcome:
        """Run a command inside and wait for it at most `timeout` seconds."""
        done = subprocess.run(
            self.enter(command),
            env={**os.environ, **(environment or {})},
            input=stdin,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def must(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> str:
        """Run a step that has to succeed and answer its standard output."""
        outcome = self.run(command, environment=environment, stdin=stdin)
        if outcome.status != 0:
            words = " ".join(str(word) for word in command)
            raise SandboxError(f"{words}: exit {outcome.status}: {outcome.stderr.strip()}")
        return outcome.stdout


@contextmanager
def sandbox(folder: Path, cgroups: Cgroups, nodes: Sequence[str]) -> Iterator[Sandbox]:
    """A new sandbox with these GPU nodes in its /dev.

    `nodes` are names as `kfd`, `dri/card0`, `dri/renderD128`. The DRM ones have the major and
    minor they have on a real machine. Where no driver stands behind a node, opening it gives
    ENXIO to who may open it and EPERM to who may not, since the kernel asks the cgroup first.
    """
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
    first = subprocess.Popen(
        ["unshare", *namespaces, "sh", "-c", _FIRST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    assert first.stderr is not None
    pid = first.stdout.readline().strip()
    if not pid:
        raise SandboxError(f"no private namespace: {first.stderr.read().strip()}")
    made = Sandbox(int(pid), folder, f"amd-cdi-test-{uuid.uuid4().hex[:8]}")
    try:
        private = folder / "private"
        private.mkdir()
        made.must(["sh", "-c", _CGROUPS[cgroups]])
        made.must(["sh", "-c", _PRIVATE, "sh", private, *_numbered(nodes)])
        yield made
    finally:
        # The first process ends, and with it every process of its namespace.
        first.communicate(timeout=60)
        remove_cgroup(made.cgroup)


def node_number(name: str) -> tuple[int, int]:
    """Major and minor of a GPU node in a sandbox, by its name below /dev."""
    if name == "kfd":
        return _unused_major(), 0
    minor = re.fullmatch(r"dri/(?:card|renderD)(\d+)", name)
    if minor is None:
        raise ValueError(f"not the name of a GPU node: {name}")
    return DRM_MAJOR, int(minor[1])


def _numbered(nodes: Sequence[str]) -> Iterator[str]:
    for name in nodes:
        major, minor = node_number(name)
        yield from (name, str(major), str(minor))


def _unused_major() -> int:
    """One of the majors for local use (240 to 254) behind which this kernel has no driver."""
    used = {line.split()[0] for line in Path("/proc/devices").read_text().splitlines() if line}
    return next(major for major in range(240, 255) if str(major) not in used)


def remove_cgroup(name: str) -> None:
    """Remove this cgroup and those below it, in which nothing runs any more."""
    for mount in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = mount.split()
        if kind in ("cgroup", "cgroup2"):
            for folder, _, _ in os.walk(Path(point) / name, topdown=False):
                Path(folder).rmdir()
