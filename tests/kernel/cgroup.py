"""Control groups of the guest's cgroup2 tree, and what the dmem controller says in their files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kernel import syscall
from tests.kernel.guest import Region


@dataclass(frozen=True)
class Cgroup:
    path: Path

    def child(self, name: str) -> "Cgroup":
        """A new cgroup below this one."""
        path = self.path / name
        path.mkdir()
        return Cgroup(path)

    def write(self, name: str, text: str) -> int:
        """One write(2) to one of its files; answers 0 or the error's number."""
        descriptor = os.open(self.path / name, os.O_WRONLY)
        try:
            return syscall.write(descriptor, text)
        finally:
            os.close(descriptor)

    def read(self, name: str) -> str:
        return (self.path / name).read_text()

    def enable(self) -> int:
        """Let its children have the controller."""
        return self.write("cgroup.subtree_control", "+dmem")

    def cap(self, region: Region, value: int | str) -> int:
        return self.write("dmem.max", f"{region.name} {value}")

    def value(self, file: str, region: Region) -> str:
        """What a file as dmem.max or dmem.current says of a region."""
        return dict(line.split() for line in self.read(file).splitlines())[region.name]

    def files(self) -> set[str]:
        """The names of the controller's files in it."""
        return {path.name for path in self.path.glob("dmem.*")}

    def admit(self, pid: int) -> None:
        """Make a process a member."""
        (self.path / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def joined(self) -> Iterator[None]:
        """The calling process is a member for as long; it comes from, and goes to, the root."""
        self.admit(os.getpid())
        try:
            yield
        finally:
            ROOT.admit(os.getpid())

    def remove(self) -> None:
        """Remove it and what is below."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            Path(folder).rmdir()


ROOT = Cgroup(Path("/sys/fs/cgroup"))
