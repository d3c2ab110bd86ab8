"""amd-cdi itself on a sandbox's machine, in the places that it has on a real one."""

import sys
from pathlib import Path

from tests.integration.sandbox import Sandbox

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED = "/opt/amd-cdi/current"
HOOK = f"{INSTALLED}/amd-oci-hook"
USAGE = "/run/amd-cdi/usage"
LOG = "/var/log/amd-cdi/hook.log"

# By environment, since a sample node's directories are the sample's own by default.
_PLACES = {
    "PYTHONPATH": str(REPOSITORY),
    "AMD_CDI_SPEC_DIR": "/etc/cdi",
    "AMD_CDI_STATE_DIR": "/var/lib/amd-cdi",
    "AMD_CDI_USAGE_DIR": USAGE,
}


def amd_cdi(sandbox: Sandbox, *arguments: str, **variables: str) -> str:
    """What this command of amd-cdi prints; it must succeed."""
    command = [sys.executable, "-m", "cdi", *arguments]
    return sandbox.must(command, environment={**_PLACES, **variables})


def configure(sandbox: Sandbox, runtime: str, config: Path, *options: str, path: str = "") -> None:
    """Let amd-cdi change what a runtime, found by this PATH, is started with."""
    command = ("runtime", "configure", f"--runtime={runtime}", f"--config={config}", *options)
    amd_cdi(sandbox, *command, **({"PATH": path} if path else {}))


def install(sandbox: Sandbox, library: Path) -> None:
    """Install the library, the hook beside it, and all that they need around them."""
    amd_cdi(sandbox, "install", f"--from={library.parent}")


def mount_usage(sandbox: Sandbox) -> None:
    """Mount the filesystem of the usage regions, as has to be done after every boot."""
    sandbox.must(["mkdir", "-p", USAGE])
    sandbox.must(["mount", "-t", "tmpfs", "usage", USAGE])


def hook_log(sandbox: Sandbox) -> list[str]:
    """The lines that the hook logged, oldest first."""
    path = sandbox.path(LOG)
    return path.read_text().splitlines() if path.exists() else []
