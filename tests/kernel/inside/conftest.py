"""Tests that run inside guests, and what they have there."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import tools
from tests.kernel.cgroup import ROOT, Cgroup
from tests.kernel.delegation import (
    pytest_configure,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    semantics,
)

__all__ = ["pytest_configure", "pytest_runtest_makereport", "pytest_runtest_protocol", "semantics"]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container's root filesystem, which its runtime may add mount points to."""
    return shutil.copytree(tools.inside().root, tmp_path_factory.mktemp("container") / "root")


@pytest.fixture(scope="session")
def hook() -> str:
    return str(tools.inside().hook)


@pytest.fixture
def pod() -> Iterator[Cgroup]:
    """The parent of a test's containers: `tests/pod`."""
    top = ROOT.child("tests")
    yield top.child("pod")
    top.remove()
