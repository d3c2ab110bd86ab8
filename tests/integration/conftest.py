"""A sandbox for each runtime, with the runtime ready in it, kept for all tests that use it."""

from collections.abc import Iterator

import pytest

from tests import debian
from tests.integration import image, need
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.runtimes import RUNTIMES
from tests.integration.sandbox import sandbox

# The DRM nodes of the sample node `mixed`, another vendor's GPU (card0, renderD128) among them.
CARDS = (0, 1, *range(9, 17), 20, 22)
RENDERS = (128, 129, *range(137, 145), 150, 152)
NODES = ("kfd", *(f"dri/card{n}" for n in CARDS), *(f"dri/renderD{n}" for n in RENDERS))


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image whose only program is static."""
    program = need.file(image.STATIC_BUSYBOX)
    layer = image.busybox_layer(tmp_path_factory.mktemp("image") / "busybox.tar", program)
    return Image("localhost/probe:busybox", [layer])


@pytest.fixture(scope="session")
def bookworm(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image whose programs are linked against the libc of Debian 12, glibc 2.36."""
    files = need.fetched(lambda: debian.unpacked("bookworm", "busybox", "libc6"))
    folder = tmp_path_factory.mktemp("image")
    layers = [
        image.layer(folder / "bookworm.tar", files),
        image.busybox_layer(folder / "links.tar", None),
    ]
    return Image("localhost/probe:bookworm", layers)


@pytest.fixture(scope="session", params=RUNTIMES, ids=lambda runtime: runtime.name)
def machine(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    busybox: Image,
    bookworm: Image,
) -> Iterator[Machine]:
    """A machine with the GPUs of the sample node `mixed`, once for each runtime."""
    need.root()
    runtime = request.param
    folder = tmp_path_factory.mktemp(runtime.name)
    with (
        sandbox(folder, runtime.cgroups, NODES) as made,
        runtime.opened(made, [busybox, bookworm]) as start,
    ):
        yield Machine(made, busybox, bookworm, start)
