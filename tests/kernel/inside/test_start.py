"""What the user of a container runtime sees where the kernel cannot hold a share."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel import containers, share, tools
from tests.kernel.cgroup import Cgroup
from tests.kernel.containers import Container, Outcome, Runtime
from tests.kernel.device import GPUS, MIB
from tests.kernel.guest import Region
from tests.kernel.runtimes import RUNTIMES
from tests.kernel.share import Part, Share

UNKNOWN = Share("unknown", [Part(Region("drm/0000:99:00.0/vram", MIB), MIB)])
KNOWN = Share("known", [Part(GPUS[0], MIB)])

# What each runtime ends with when a hook refuses (podman-run(1); runc and crun measured).
STATUS = {"runc": 1, "crun": 255, "crun-1.21": 255, "podman-runc": 126, "podman-crun": 126}

Start = Callable[[Share, str], Outcome]

pytestmark = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root filesystem whose programs load the library: the host's, with what is written apart."""
    folder = tmp_path_factory.mktemp("system")
    lower, upper, work, root = (folder / name for name in ("lower", "upper", "work", "root"))
    for path in (lower, upper, work, root):
        path.mkdir()
    layers = f"lowerdir=/,upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", root], check=True)
    yield root
    subprocess.run(["umount", root], check=True)


@pytest.fixture
def start(runtime: Runtime, system: Path, pod: Cgroup, tmp_path: Path) -> Start:
    """Starts a container with a share under a policy."""

    def started(of: Share, require: str) -> Outcome:
        own = tools.inside()
        hooks = [of.hook(str(own.hook), require)]
        binds = share.binds(own, of)
        container = Container(of.name, system, "tests/pod", hooks, of.environment(), binds)
        return containers.run(runtime.command(container, tmp_path, ["/bin/echo", "started"]))

    return started


def assert_refused(outcome: Outcome, runtime: Runtime, word: str) -> None:
    """The container never ran, its user was told by the runtime, and the log says why."""
    assert (outcome.status, outcome.stdout) == (STATUS[runtime.name], "")
    *_, reason = Path("/var/log/amd-cdi/hook.log").read_text().splitlines()
    assert word in reason
    if "runc" in runtime.name:
        assert word in outcome.stderr
    else:
        assert "amd-oci-hook` (exit code: 1)" in outcome.stderr


def test_an_unknown_region_is_refused(runtime: Runtime, start: Start, pod: Cgroup) -> None:
    assert_refused(start(UNKNOWN, "dmem"), runtime, "0000:99:00.0")
    left = {path.name for path in pod.path.iterdir() if path.is_dir()}
    assert left <= {"conmon"}  # podman's own, for its monitor


def test_an_unknown_region_is_left_to_the_library_under_any(start: Start) -> None:
    assert start(UNKNOWN, "any") == Outcome(0, "started\n", "")


@pytest.mark.boot("cgroup_disable=dmem")
class TestKernelWithoutTheController:
    def test_is_refused(self, runtime: Runtime, start: Start) -> None:
        assert_refused(start(KNOWN, "dmem"), runtime, "CONFIG_CGROUP_DMEM")

    def test_is_left_to_the_library_under_any(self, start: Start) -> None:
        assert start(KNOWN, "any") == Outcome(0, "started\n", "")
