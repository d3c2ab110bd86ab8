"""Sample nodes: one laid out for all tests that only read it, and copies for the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdi.node import sample
from tests.cli.host import Host

MakeHost = Callable[[str], Host]


@pytest.fixture(scope="session")
def sysroot(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Lay out a sample node once."""
    base = tmp_path_factory.mktemp("nodes")

    def lay(name: str) -> Path:
        if not (base / name).exists():
            sample.expand(name, base / name)
        return base / name

    return lay


@pytest.fixture
def on(sysroot: Callable[[str], Path], tmp_path: Path) -> MakeHost:
    """Make a host of a sample node, whose sysfs other tests read as well."""
    return lambda name: Host(sysroot(name), tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> MakeHost:
    """Make a host of a sample node whose sysfs the test may change."""

    def make(name: str) -> Host:
        sample.expand(name, tmp_path / "root")
        return Host(tmp_path / "root", tmp_path)

    return make


@pytest.fixture
def radeons(on: MakeHost) -> Host:
    """The smallest sample: two RX 7900 XTX of 96 CUs in 48 WGPs and 24560 MiB."""
    return on("rx7900xtx")
