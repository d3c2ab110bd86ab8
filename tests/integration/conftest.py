"""A sandbox for each runtime, with the runtime ready in it, kept for all tests that use it."""

import shutil
from collections.abc import Iterator
from operator import attrgetter

import pytest

from tests import debian
from tests.integration import image, need
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.product import amd_cdi, install
from tests.integration.runtimes import BARE, ENGINES
from tests.integration.sandbox import sandbox

# The DRM nodes of the sample node `mixed`, another vendor's GPU (card0, renderD128) among them.
CARDS = (0, 1, *range(9, 17), 20, 22)
RENDERS = (128, 129, *range(137, 145), 150, 152)
NODES = ("kfd", *(f"dri/card{n}" for n in CARDS), *(f"dri/renderD{n}" for n in RENDERS))


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image whose only program is static."""
    root = tmp_path_factory.mktemp("busybox")
    image.add_programs(root)
    shutil.copy(need.file(image.STATIC_BUSYBOX), root / "bin")
    return Image("localhost/probe:busybox", root)


@pytest.fixture(scope="session")
def bookworm(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """An image whose programs are linked against the libc of Debian 12, glibc 2.36."""
    files = need.fetched(lambda: debian.unpacked("bookworm", "busybox", "libc6"))
    root = tmp_path_factory.mktemp("bookworm")
    shutil.copytree(files, root, symlinks=True, dirs_exist_ok=True)
    image.add_programs(root)
    return Image("localhost/probe:bookworm", root)


@pytest.fixture(scope="session", params=[*ENGINES, *BARE], ids=attrgetter("name"))
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
        yield Machine(made, runtime, bookworm, busybox, start)


@pytest.fixture(scope="session")
def node(machine: Machine) -> Machine:
    """The machine with amd-cdi installed, a share of GPU 0 and equal shares of the rest."""
    install(machine.sandbox)
    request = ("--gpu=0", "--cores=25", "--memory=48GiB", "--sample=mixed")
    amd_cdi(machine.sandbox, "share", "create", "alice", *request)
    amd_cdi(machine.sandbox, "generate", "--split=2", "--sample=mixed")
    return machine
