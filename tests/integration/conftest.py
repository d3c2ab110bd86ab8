"""A sandbox for each runtime, with the runtime ready in it, kept for all tests that use it."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from tests import hook_program, need
from tests.integration import record, roots
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.product import amd_cdi, install
from tests.integration.record import Recorded
from tests.integration.runtimes import BARE, ENGINES
from tests.integration.sandbox import sandbox
from tests.libamvgpu.runtime import build_library

# The DRM nodes of the sample node `mixed`, another vendor's GPU (card0, renderD128) among them.
CARDS = (0, 1, *range(9, 17), 20, 22)
RENDERS = (128, 129, *range(137, 145), 150, 152)
NODES = ("kfd", *(f"dri/card{n}" for n in CARDS), *(f"dri/renderD{n}" for n in RENDERS))


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder for all that is large; nothing of it is kept."""
    need.namespaces()
    with tempfile.TemporaryDirectory(prefix="amd-cdi-") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def static(scratch: Path) -> Image:
    return _image(scratch, roots.static_busybox)


@pytest.fixture(scope="session")
def dynamic(scratch: Path) -> Image:
    return _image(scratch, roots.glibc_busybox)


def _image(scratch: Path, lay: Callable[[Path], None]) -> Image:
    root = scratch / lay.__name__
    root.mkdir()
    lay(root)
    return Image(f"localhost/{lay.__name__}:1", root)


@pytest.fixture(scope="session", params=[*ENGINES, *BARE], ids=attrgetter("name"))
def machine(
    request: pytest.FixtureRequest, scratch: Path, dynamic: Image, static: Image
) -> Iterator[Machine]:
    """A machine with the GPUs of the sample node `mixed`, once for each runtime."""
    runtime = request.param
    folder = scratch / runtime.name
    folder.mkdir()
    with (
        sandbox(folder, runtime.cgroups, NODES) as made,
        runtime.opened(made, [dynamic, static]) as start,
    ):
        yield Machine(made, runtime, dynamic, static, start)


@pytest.fixture(scope="session")
def library(scratch: Path) -> Path:
    """The library, with the hook's program beside it, as a wheel brings them."""
    folder = scratch / "native"
    folder.mkdir()
    shutil.copy(hook_program.build(scratch / "hook"), folder)
    return Path(shutil.copy(build_library(scratch / "library"), folder))


@pytest.fixture(scope="session")
def node(machine: Machine, library: Path) -> Machine:
    """The machine with amd-cdi installed, a share of GPU 0 and equal shares of the rest."""
    install(machine.sandbox, library)
    request = ("--gpu=0", "--cores=25", "--memory=48GiB", "--sample=mixed")
    amd_cdi(machine.sandbox, "share", "create", "alice", *request)
    amd_cdi(machine.sandbox, "generate", "--split=2", "--sample=mixed")
    return machine


@pytest.fixture(scope="session")
def recorded(node: Machine) -> Iterator[Recorded]:
    """What the runtime makes of a share; until its end the hooks are at createRuntime."""
    with record.recorded(node) as made:
        yield made
