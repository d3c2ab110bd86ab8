"""A machine with GPUs and one container runtime, as a test meets it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.integration import probe
from tests.integration.container import Container, Runtime, Start
from tests.integration.image import Image
from tests.integration.product import hook_log
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
        command: Sequence[str] = ("/bin/sh", probe.PATH),
        environment: Mapping[str, str] | None = None,
        nodes: Sequence[str] = (),
        binds: Mapping[str, str] | None = None,
        privileged: bool = False,
    ) -> Outcome:
        """What the user sees of a container with these devices of amd.com/gpu."""
        return self.start(
            Container(
                image or self.image,
                cdi=[f"amd.com/gpu={device}" for device in devices],
                command=command,
                environment=environment or {},
                devices=nodes,
                binds=binds or {},
                privileged=privileged,
            )
        )

    def look(self, *devices: str, strangers: Sequence[str] = ()) -> probe.Sight:
        """What a container with these devices sees; it must end well.

        `strangers` are the `major:minor` of devices that it tries to open by nodes of its own.
        """
        outcome = self.run(*devices, command=("/bin/sh", probe.PATH, *strangers))
        assert (outcome.status, outcome.stderr) == (0, "")
        return probe.parse(outcome.stdout)

    def assert_refused(self, outcome: Outcome, reason: str) -> None:
        """Check that the hook kept all of a container from running.

        Its user, or where the runtime hides it the reader of the log, must find `reason`, a
        regular expression.
        """
        assert (outcome.status, outcome.stdout) == (self.runtime.refusal, ""), outcome.stderr
        line = f"refused: {reason}"
        assert re.search(line, hook_log(self.sandbox)[-1])
        shown = line if self.runtime.quotes_hook else r"error executing hook .*\(exit code: 1\)"
        assert re.search(shown, outcome.stderr)
