"""What the tests of libamvgpu share: all is built once per session, in a temporary folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests import debian, need
from tests.libamvgpu import runtime
from tests.libamvgpu.runtime import Driver, Runtime, Share

if TYPE_CHECKING:
    from pathlib import Path


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a test says it does not apply to: nothing that could run is skipped."""
    left_out = [
        item
        for item in items
        for mark in item.iter_markers("applies")
        if not mark.kwargs["when"](**item.callspec.params)  # type: ignore[attr-defined]
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in ("make", "cc"):
        need.program(tool)
    return runtime.build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need.fetched(runtime.headers)
    return runtime.build_standin(tmp_path_factory.mktemp("standin"))


@pytest.fixture(scope="session")
def runtimes(
    library: Path, standin: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Runtime | str]:
    """Each suite's HIP, or why it is not to be had."""
    found: dict[str, Runtime | str] = {}
    for suite in runtime.PACKAGES:
        try:
            root = runtime.hip_tree(suite)
        except debian.FetchError as reason:
            found[suite] = str(reason)
            continue
        folder = tmp_path_factory.mktemp(suite)
        shutil.copy(standin, folder)
        found[suite] = Runtime(suite, root, folder, library)
    return found


def present(found: Runtime | str) -> Runtime:
    """The runtime, or a skip with the reason it is not there."""
    if not isinstance(found, Runtime):
        need.lacking(found)
    return found


@pytest.fixture(params=list(runtime.PACKAGES))
def hip(request: pytest.FixtureRequest, runtimes: dict[str, Runtime | str]) -> Runtime:
    """Each HIP in turn."""
    return present(runtimes[request.param])


@pytest.fixture
def trixie(runtimes: dict[str, Runtime | str]) -> Runtime:
    """HIP 5.7, for what does not depend on the version."""
    return present(runtimes["trixie"])


@pytest.fixture
def start(tmp_path: Path):
    """Starts tests/driver.c on a HIP, in a share; ended with the test."""
    drivers: list[Driver] = []

    def begin(hip: Runtime, share: Share, **extra: str) -> Driver:
        drivers.append(Driver([*hip.loader(), hip.driver()], share.environment(extra)))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.__exit__(None, None, None)
