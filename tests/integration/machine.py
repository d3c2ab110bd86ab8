"""A machine with GPUs and one container runtime, as a test meets it."""

from dataclasses import dataclass

from tests.integration import probe
from tests.integration.container import Container, Start
from tests.integration.image import Image
from tests.integration.sandbox import Sandbox


@dataclass(frozen=True)
class Machine:
    sandbox: Sandbox
    busybox: Image
    bookworm: Image
    start: Start

    def look(self, *devices: str, strangers: tuple[str, ...] = ()) -> probe.Sight:
        """What a container with these devices of amd.com/gpu sees; it must end well.

        `strangers` are the `major:minor` of devices that it tries to open by nodes of its own.
        """
        outcome = self.start(
            Container(
                self.busybox,
                cdi=[f"amd.com/gpu={device}" for device in devices],
                command=("/bin/sh", probe.PATH, *strangers),
            )
        )
        assert (outcome.status, outcome.stderr) == (0, "")
        return probe.parse(outcome.stdout)
