"""One cluster for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import REGISTER, Cluster
from tests.cluster.control import control_plane
from tests.cluster.node import node
from tests.cluster.plugin import installed
from tests.cluster.programs import Programs, programs
from tests.integration.conftest import dynamic, library, scratch, static  # noqa: F401
from tests.integration.image import Image
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE


@pytest.fixture(scope="session")
def kubernetes() -> Programs:
    return programs()


@pytest.fixture(scope="session")
def cluster(
    kubernetes: Programs,
    scratch: Path,  # noqa: F811
    dynamic: Image,  # noqa: F811
    static: Image,  # noqa: F811
    library: Path,  # noqa: F811
) -> Iterator[Cluster]:
    """A cluster whose plugin has told kubelet and HAMi's scheduler of the node's GPUs."""
    images = [dynamic, static]
    with (
        control_plane(scratch / "control", kubernetes) as plane,
        node(scratch / "node", kubernetes, plane, images, library) as machine,
    ):
        plugin = installed(plane, machine)
        plugin.start()
        await_that(lambda: REGISTER in plane.api.annotations(NODE), 60)
        yield Cluster(plane, machine, plugin, dynamic, static)


@pytest.fixture(autouse=True)
def cleared(cluster: Cluster) -> Iterator[None]:
    """No test finds pods of another."""
    yield
    cluster.clear()
