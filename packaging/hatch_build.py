"""What is made before a wheel is built: the messages of gRPC, and the two files that a node needs.

The messages of the device plugin API are made for an installation for development as well. The
library and the hook's program take a C compiler; a wheel that is built on a machine without one is
made without them, and says so.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTOS = ("deviceplugin/v1beta1.proto", "deviceplugin/cri.proto")

PARTS = {"libamvgpu": "libamvgpu.so", "packaging/hook": "amd-oci-hook"}
"""Folder of the Makefile and name of the file that it makes."""

PLACE = "cdi/native"
"""Where a wheel has them."""

OLDEST_GLIBC = (2, 17)
"""What the wheel's tag names at least: the oldest that installers know for every machine."""

NEEDS = re.compile(rb"GLIBC_(\d+)\.(\d+)")
"""The version of a symbol, as it stands in a library's string table."""


def tag(files: list[Path]) -> str:
    """Return the platforms of a wheel with these files, by its machine and the glibc they need."""
    machine = platform.machine()
    found = [tuple(map(int, version)) for path in files for version in needs(path)]
    major, minor = max([OLDEST_GLIBC, *found])
    # The older name of the same, for installers of that time.
    older = f".manylinux2014_{machine}" if (major, minor) == OLDEST_GLIBC else ""
    return f"manylinux_{major}_{minor}_{machine}{older}"


def needs(path: Path) -> list[tuple[bytes, bytes]]:
    """Return the versions of glibc that a library names; a static program needs none."""
    return NEEDS.findall(path.read_bytes()) if path.suffix == ".so" else []


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


class BuildHook(BuildHookInterface):
    """Called by hatchling before and after each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the messages and, for a wheel that will be installed elsewhere, the files."""
        self._messages(build_data)
        self.folder = tempfile.TemporaryDirectory()
        if self.target_name != "wheel" or version == "editable":
            return
        made = [self._part(source, name) for source, name in PARTS.items()]
        files = [path for path in made if path is not None]
        if files:
            build_data["force_include"] |= {str(path): f"{PLACE}/{path.name}" for path in files}
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag(files)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what the wheel now has."""
        self.folder.cleanup()

    def _messages(self, build_data: dict[str, Any]) -> None:
        """Write ``…_pb2.py`` and ``…_pb2.pyi`` beside each proto."""
        from grpc_tools import protoc

        status = protoc.main(
            [
                "protoc",
                f"-I{self.root}",
                f"--python_out={self.root}",
                f"--pyi_out={self.root}",
                *(str(Path(self.root) / proto) for proto in PROTOS),
            ]
        )
        if status:
            raise RuntimeError(f"protoc could not compile {' '.join(PROTOS)} (status {status})")
        build_data["artifacts"] += ["deviceplugin/*_pb2.py", "deviceplugin/*_pb2.pyi"]

    def _part(self, source: str, name: str) -> Path | None:
        """Return the file that a Makefile makes, None where the machine lacks what that takes."""
        target = Path(self.folder.name) / name
        make = ["make", "-s", "-C", str(Path(self.root) / source), f"BUILD={target}.build"]
        missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
        missing = missing or run(*make, "missing").stdout.splitlines()
        if missing:
            hint = "install that and build again for a wheel that has it"
            self.app.display_warning(f"no {name} without {', '.join(missing)}: {hint}")
            return None
        done = run(*make)
        if done.returncode != 0:
            raise RuntimeError(f"{name} could not be built: {done.stderr.strip()[-2000:]}")
        Path(f"{target}.build", name).rename(target)
        return target
