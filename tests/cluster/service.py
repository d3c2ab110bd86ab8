"""A program that runs for long in a sandbox, and that a test ends and starts again."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.sandbox import Sandbox

# Says its number, as the sandbox counts, and becomes the program.
_STARTED = 'echo $$ >"$0" && exec "$@"'


@dataclass
class Service:
    sandbox: Sandbox
    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """All that it has said in all of its lives."""
        return self.sandbox.folder / f"{self.name}.log"

    def start(self) -> None:
        command = ["sh", "-c", _STARTED, self._number, *self.command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.sandbox.enter(command),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def stop(self, signal: str = "TERM") -> None:
        """End it with a signal, and wait until it has ended; KILL leaves it no say."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            self.sandbox.run(["kill", f"-{signal}", self._number.read_text().strip()])
        process.wait(60)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def _number(self) -> Path:
        return self.sandbox.folder / f"{self.name}.pid"
