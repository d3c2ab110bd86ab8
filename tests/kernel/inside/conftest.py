"""Tests that run inside guests, and what they have there."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import need
from tests.kernel import containers
from tests.kernel.cgroup import ROOT, Cgroup
from tests.kernel.delegation import (
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    semantics,
)

__all__ = ["pytest_configure", "pytest_runtest_makereport", "pytest_runtest_protocol", "semantics"]

_SOURCE = Path(containers.__file__).with_name("charge.c")


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container's root filesystem: the charging program and nothing else."""
    made = tmp_path_factory.mktemp("root")
    for folder in ("bin", "dev", "etc", "proc", "run", "sys", "tmp", "var"):
        (made / folder).mkdir()
    program = made / containers.CHARGE.lstrip("/")
    command = [need.program("gcc"), "-static", "-Os", "-o", program, _SOURCE]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hook, installed as on a node."""
    folder = tmp_path_factory.mktemp("hook")
    interpreter = need.program("python3")
    install = [interpreter, "-m", "ocihook.install", f"--target={folder}"]
    subprocess.run([*install, f"--interpreter={interpreter}"], check=True)
    return str(folder / "amd-oci-hook")


@pytest.fixture
def pod() -> Iterator[Cgroup]:
    """The parent of a test's containers."""
    made = ROOT.child("tests").child("pod")
    yield made
    ROOT.existing("tests").remove()
