"""A machine with GPUs and one container runtime, as a test meets it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.integration import probe
from tests.integration.container import Container, Runtime, Start
from tests.integration.image import Image
from tests.integration.sandbox import Outcome, Sandbox


@dataclass(frozen=True)
class Machine:
    sandbox: Sandbox
    runtime: Runtime
    image: Image
    """What containers are of unless a test says otherwise."""
    static: Image
    """One whose only program is static."""
    start: Start

    def run(
        self,
        *devices: str,
        image: Image | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        nodes: Sequence[str] = (),
        binds: Sequence[str] = (),
        privileged: bool = False,
    ) -> Outcome:
        """The probe in a container with these devices of amd.com/gpu."""
        return self.start(
            Container(
                image or self.image,
                cdi=[f"amd.com/gpu={device}" for device in devices],
                command=("/bin/sh", probe.PATH, *arguments),
                environment=environment or {},
                devices=nodes,
                binds=binds,
                privileged=privileged,
            )
        )

    def look(self, *devices: str, strangers: Sequence[str] = ()) -> probe.Sight:
        """What a container with these devices sees; it must end well.

        `strangers` are the `major:minor` of devices that it tries to open by nodes of its own.
        """
        outcome = self.run(*devices, arguments=strangers)
        assert (outcome.status, outcome.stderr) == (0, "")
        return probe.parse(outcome.stdout)
