"""The hook as a static program, built by its own Makefile."""

import subprocess
from functools import cache
from pathlib import Path

from tests import need

SOURCE = Path(__file__).resolve().parents[1] / "packaging/hook"
PYTHON = Path("/usr/bin/python3")
"""Whose static library Debian's libpython3-dev brings."""


def build(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> Path:
    """The program, built in this folder."""
    for tool in ("make", "cc"):
        need.program(tool)
    need.file(_library())
    command = ["make", "-s", "-C", SOURCE, f"BUILD={folder}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return folder / "amd-oci-hook"


@cache
def _library() -> Path:
    tell = "import sysconfig as s; print(s.get_config_var('LIBPL'), s.get_config_var('LIBRARY'))"
    command = [need.file(PYTHON), "-IS", "-c", tell]
    folder, name = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.split()
    return Path(folder, name)
