"""A program that runs for long in a sandbox, and that a test ends and starts again."""

import os
import signal
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

    def stop(self, name: str = "TERM") -> None:
        """End it with a signal, and wait until it has ended; KILL leaves it no say."""
        process, self.process = self.process, None
        if process is None:
            return
        if process.poll() is None:
            self.signal(name)
        process.wait(60)

    def signal(self, name: str) -> None:
        self.sandbox.run(["kill", f"-{name}", self._number.read_text().strip()])

    def pause(self) -> None:
        """Let it do nothing until it is resumed."""
        self.signal("STOP")

    def resume(self) -> None:
        self.signal("CONT")
        if self.process is not None:
            # What entered the sandbox for it has stopped with it.
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def _number(self) -> Path:
        return self.sandbox.folder / f"{self.name}.pid"
