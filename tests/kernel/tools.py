"""What the tests take into a guest: built on the host, which is faster, once a session."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.containers import CHARGE

_HERE = Path(__file__).parent
_FOLDER = "AMD_CDI_GUEST_TOOLS"
"""Inside a guest, names the folder of the tools."""

# The loader takes a library with this function for an auditor.
_AUDITOR = "unsigned la_version(unsigned version) { return version; }"


@dataclass(frozen=True)
class Tools:
    folder: Path

    @property
    def root(self) -> Path:
        """A container's root filesystem: the charging program and nothing else."""
        return self.folder / "root"

    @property
    def charge(self) -> Path:
        return self.root / CHARGE.lstrip("/")

    @property
    def library(self) -> Path:
        """Stands for libamvgpu: a library that the loader accepts as an auditor."""
        return self.folder / "libamvgpu.so"

    @property
    def hook(self) -> Path:
        """The hook, installed as on a node."""
        return self.folder / "hook/amd-oci-hook"

    def environment(self) -> dict[str, str]:
        """What tells the tests inside of them."""
        return {_FOLDER: str(self.folder)}


def inside() -> Tools:
    """The tools, for a test that runs inside a guest."""
    return Tools(Path(os.environ[_FOLDER]))


def build(folder: Path) -> Tools:
    """Build the tools in an empty folder; raises CalledProcessError where one does not build."""
    tools = Tools(folder)
    for name in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
        (tools.root / name).mkdir(parents=True)
    charge = ["gcc", "-static", "-Os", "-o", str(tools.charge), str(_HERE / "charge.c")]
    subprocess.run(charge, check=True)
    auditor = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tools.library)]
    subprocess.run(auditor, input=_AUDITOR, text=True, check=True)
    install = [sys.executable, "-m", "ocihook.install", f"--target={tools.hook.parent}"]
    subprocess.run(install, cwd=_HERE.parents[1], check=True)
    return tools
