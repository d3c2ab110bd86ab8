"""Whether a share starts depends on the image's libc: real and hostile root filesystems.

The loader of glibc takes libraries from LD_AUDIT, musl's does not, and a static program has none.
"""

import tempfile
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from tests import debian, need
from tests.integration import roots
from tests.integration.image import Image
from tests.integration.machine import Machine
from tests.integration.product import hook_log
from tests.integration.runtimes import BARE

# The hook looks at the image in the same way whoever runs it; runc also shows what it says.
pytestmark = pytest.mark.parametrize("machine", [BARE[0]], ids=attrgetter("name"), indirect=True)

SHELL = "expected '/bin/sh' as a dynamic program that loads LD_AUDIT, found "
REGULAR = "expected a regular file at '/{}' in the container, found "


COMMAND = ("/bin/sh", "-c", "exit 0")


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Image]:
    """An image that a function of `roots` lays."""
    with tempfile.TemporaryDirectory(prefix="amd-cdi-") as root:
        request.param(Path(root))
        yield Image(request.param.__name__, Path(root))


def system(suite: str) -> Image:
    """A minimal Debian."""
    return Image(suite, need.fetched(lambda: debian.root_filesystem(suite)))


def test_a_share_starts_in_debian_12(node: Machine) -> None:
    command = ("/bin/cat", "/proc/self/maps")
    outcome = node.run("share-alice", image=system("bookworm"), command=command)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "/usr/local/vgpu/libamvgpu.so" in outcome.stdout
    assert hook_log(node.sandbox)[-1].endswith("memory held by the library, glibc 2.35 or later")


def test_debian_11_runs_only_without_a_share(node: Machine) -> None:
    bullseye = system("bullseye")
    assert node.run("0", image=bullseye, command=COMMAND).status == 0
    outcome = node.run("share-alice", image=bullseye, command=COMMAND)
    node.assert_refused(outcome, SHELL + "the loader '/lib/x86_64-linux-gnu/ld-2.31.so', glibc")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (roots.musl, "the loader '/lib/ld-musl-x86_64.so.1', none of glibc's"),
        (roots.static_busybox, "a static program at '/bin/busybox'"),
    ],
    indirect=["made"],
)
def test_programs_without_glibc_run_only_without_a_share(
    node: Machine, made: Image, reason: str
) -> None:
    assert node.run("0", image=made, command=COMMAND).status == 0
    outcome = node.run("share-alice", image=made, command=COMMAND)
    node.assert_refused(outcome, SHELL + reason)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (roots.empty, "expected the program '/bin/sh' in the container's image, found none"),
        (roots.link_out, "expected the program '/bin/sh' in the container's image, found none"),
        (roots.link_through_proc, SHELL + "no libc.so.6 for '/lib64/ld-linux-x86-64.so.2'"),
        (roots.link_loop, "expected paths of 4096 characters and 128 links in the container"),
        (roots.fifo_libc, REGULAR.format(roots.LIBC) + "a FIFO"),
        (roots.device_shell, REGULAR.format("bin/sh") + "a device"),
        (roots.huge_libc, SHELL + f"no 64-bit little-endian ELF file at '/{roots.LIBC}'"),
    ],
    indirect=["made"],
)
def test_a_hostile_image_is_refused_for_what_it_is(node: Machine, made: Image, reason: str) -> None:
    node.assert_refused(node.run("share-alice", image=made, command=COMMAND), reason)
