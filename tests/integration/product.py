"""amd-cdi itself on a sandbox's machine, in the places that it has on a real one."""

import sys
from pathlib import Path

from tests.integration.sandbox import Sandbox

REPOSITORY = Path(__file__).resolve().parents[2]
INSTALLED = "/usr/local/lib/amd-cdi"
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

# What glibc asks of a library for LD_AUDIT; it leaves a trace in the share's usage region.
_LIBRARY = """
#include <fcntl.h>
#include <unistd.h>
unsigned int la_version(unsigned int version)
{
    int usage = open("/usr/local/vgpu/usage", O_WRONLY);
    if (usage >= 0 && write(usage, "loaded", 6) == 6)
        close(usage);
    return version;
}
"""


def amd_cdi(sandbox: Sandbox, *arguments: str) -> str:
    """What this command of amd-cdi prints; it must succeed."""
    return sandbox.must([sys.executable, "-m", "cdi", *arguments], environment=_PLACES)


def install(sandbox: Sandbox) -> None:
    """Install the hook, a stand-in for the library, and the filesystem of the usage regions."""
    command = [sys.executable, "-m", "ocihook.install", f"--target={INSTALLED}"]
    sandbox.must(command, environment=_PLACES)
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-o", f"{INSTALLED}/libamvgpu.so", "-"]
    sandbox.must(compiler, stdin=_LIBRARY)
    sandbox.must(["mkdir", "-p", USAGE])
    sandbox.must(["mount", "-t", "tmpfs", "usage", USAGE])


def hook_log(sandbox: Sandbox) -> list[str]:
    """The lines that the hook logged, oldest first."""
    path = sandbox.path(LOG)
    return path.read_text().splitlines() if path.exists() else []
