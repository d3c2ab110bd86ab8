"""A machine with GPUs and one container runtime, as a test meets it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from tests.integration import probe
from tests.integration.container import Container, Start
from tests.integration.image import Image
from tests.integration.sandbox import Sandbox

HOOK = "/usr/local/lib/amd-cdi/amd-oci-hook"
LIBRARY = "/usr/local/lib/amd-cdi/libamvgpu.so"
USAGE = "/run/amd-cdi/usage"

# All by environment, since a sample's directories are the sample's own by default.
_AMD_CDI = {
    "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    "AMD_CDI_SAMPLE": "mixed",
    "AMD_CDI_SPEC_DIR": "/etc/cdi",
    "AMD_CDI_STATE_DIR": "/var/lib/amd-cdi",
    "AMD_CDI_USAGE_DIR": USAGE,
}


@dataclass(frozen=True)
class Machine:
    sandbox: Sandbox
    busybox: Image
    bookworm: Image
    start: Start

    def amd_cdi(self, *arguments: str) -> str:
        """What this command of amd-cdi prints; it must succeed."""
        return self.sandbox.must([sys.executable, "-m", "cdi", *arguments], environment=_AMD_CDI)

    def prepare(self, hook: str) -> None:
        """Lay what a share's containers need of the host: this hook, a library, usage regions."""
        for path in (HOOK, LIBRARY):
            self.sandbox.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.sandbox.path(HOOK).write_text(hook)
        self.sandbox.path(HOOK).chmod(0o755)
        self.sandbox.path(LIBRARY).touch()
        self.sandbox.path(USAGE).mkdir(parents=True)
        self.sandbox.must(["mount", "-t", "tmpfs", "usage", USAGE])

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
