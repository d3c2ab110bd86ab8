"""Containers that allocate device memory, and what the user of their runtime sees of it."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.kernel.guest import Region

Stage = Literal["prestart", "createRuntime"]
CHARGE = "/bin/charge"
"""The program in every container's root filesystem that allocates (see charge.c)."""

_SECONDS = 60


@dataclass(frozen=True)
class Hook:
    """As the OCI runtime specification has it, and CDI the same."""

    path: str
    args: Sequence[str]
    """The first is the program's own name."""
    stage: Stage = "prestart"


@dataclass(frozen=True)
class Bind:
    """A host file that appears in the container, read-only."""

    source: Path
    target: str


@dataclass(frozen=True)
class Container:
    name: str
    root: Path
    """Its root filesystem."""
    parent: str
    """Of its cgroup, from the root: `tests/pod`."""
    hooks: Sequence[Hook] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    binds: Sequence[Bind] = ()


@dataclass(frozen=True)
class Runtime:
    name: str
    command: Callable[[Container, Path, Sequence[str]], list[str]]
    """Makes ready what a container with this program needs, partly in a folder of the test's;
    the answer starts it and ends with it."""
    update: Callable[[str], list[str]]
    """The command that changes another limit of the running container with this name."""


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Running:
    """A container whose program waits for orders."""

    process: "subprocess.Popen[str]"

    def charge(self, region: Region, count: int) -> int:
        """Let it allocate bytes; answers 0 or the error's number. It keeps what it got."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{region.name} {count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def charge(
    runtime: Runtime, container: Container, folder: Path, region: Region, *counts: int
) -> Outcome:
    """Start a container that allocates these bytes first of all, one after the other.

    It prints 0 or the error's number for each, and exits with the last.
    """
    orders = [word for count in counts for word in (region.name, str(count))]
    return run(runtime.command(container, folder, [CHARGE, *orders]))


def run(command: Sequence[str]) -> Outcome:
    done = subprocess.run(
        command, input="", capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(runtime: Runtime, container: Container, folder: Path) -> Iterator[Running]:
    """A container whose program has started; it ends, well, with the context."""
    process = subprocess.Popen(
        runtime.command(container, folder, [CHARGE]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
        _, said = process.communicate(timeout=_SECONDS)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.wait()
