"""A sample node that real ``amd-cdi`` processes work on, with its directories in a test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("amd-cdi")

SECONDS = 240
"""No command takes a hundredth of it alone; here many run at once, beside other work."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a process said and how it ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def failed(self, *parts: str, status: int = 1) -> Result:
        """Check that it failed and said all of this, in one line and without a traceback."""
        assert self.status == status, self
        assert "Traceback" not in self.err, self
        assert "please report it" not in self.err, self
        said = " ".join(self.err.split())
        for part in parts:
            assert part in said, f"{part!r} is not in {said!r}"
        return self

    def done(self) -> Result:
        """Check that it succeeded."""
        assert self.status == 0, self
        return self


@dataclass(frozen=True, slots=True)
class Host:
    """The directories of a node, and what is put before every command."""

    sysroot: Path
    folder: Path
    prefix: tuple[str, ...] = ()

    @property
    def spec_dir(self) -> Path:
        return self.folder / "cdi"

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def spec_file(self) -> Path:
        return self.spec_dir / "amd.com-gpu.yaml"

    @property
    def ledger_file(self) -> Path:
        return self.state_dir / "ledger.json"

    @property
    def environment(self) -> dict[str, str]:
        """The directories as variables, and nothing of amd-cdi's from outside of the test."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AMD_CDI_")}
        return kept | {
            "AMD_CDI_SYSROOT": str(self.sysroot),
            "AMD_CDI_SPEC_DIR": str(self.spec_dir),
            "AMD_CDI_STATE_DIR": str(self.state_dir),
        }

    def under(self, *prefix: str) -> Host:
        """Return the same host with this before every command."""
        return replace(self, prefix=prefix)

    def start(self, *arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            # A shell that started the tests in the background has Ctrl-C ignored.
            ["env", "--default-signal=INT", *self.prefix, str(COMMAND), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path, **variables: str) -> Result:
        """Run a command to its end."""
        return finish(self.start(*arguments, **variables))

    def generate(self, *arguments: str | Path) -> Result:
        return self.run("generate", *arguments)

    def share(self, *arguments: str | Path) -> Result:
        return self.run("share", *arguments)

    def ledger(self) -> Any:
        return json.loads(self.ledger_file.read_bytes())


def finish(process: subprocess.Popen[str]) -> Result:
    """Wait for a command."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Result(process.returncode, out, err)


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return everything below a folder: kind, mode, inode, time of change and content."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file() and status.st_size < 1 << 20:
            content = path.read_bytes()
        moment = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path)] = (status.st_mode, status.st_ino, moment, content)
    return found
