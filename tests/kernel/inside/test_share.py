"""Containers with a share, started by real runtimes: the kernel holds them to it."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel import containers
from tests.kernel.cgroup import Cgroup
from tests.kernel.containers import Container, Outcome, Runtime, Stage
from tests.kernel.device import GPUS, MIB
from tests.kernel.runtimes import RUNTIMES
from tests.kernel.share import Part, Share

GPU = GPUS[0]

Make = Callable[..., Container]

pytestmark = pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)


@pytest.fixture
def make(root: Path, hook: str, pod: Cgroup) -> Make:
    """A container with a share."""

    def made(share: Share, stage: Stage = "prestart") -> Container:
        hooks = [share.hook(hook, "dmem", stage)]
        return Container(share.name, root, "tests/pod", hooks, share.environment())

    return made


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_is_capped_before_its_first_instruction(
    runtime: Runtime, make: Make, stage: Stage, tmp_path: Path
) -> None:
    container = make(Share("capped", [Part(GPU, 64 * MIB)]), stage)
    outcome = containers.charge(runtime, container, tmp_path, GPU, 64 * MIB + 1, 64 * MIB)
    assert outcome == Outcome(0, f"{errno.EAGAIN}\n0\n", "")


def test_two_on_one_gpu_are_independent(runtime: Runtime, make: Make, tmp_path: Path) -> None:
    one, two = (make(Share(name, [Part(GPU, 512 * MIB)])) for name in ("one", "two"))
    with (
        containers.running(runtime, one, tmp_path) as first,
        containers.running(runtime, two, tmp_path) as second,
    ):
        assert first.charge(GPU, 512 * MIB) == 0
        assert first.charge(GPU, 1) == errno.EAGAIN
        assert second.charge(GPU, 512 * MIB) == 0
        assert second.charge(GPU, 1) == errno.EAGAIN


def test_stays_capped_when_the_runtime_updates_it(
    runtime: Runtime, make: Make, tmp_path: Path
) -> None:
    container = make(Share("updated", [Part(GPU, 64 * MIB)]))
    with containers.running(runtime, container, tmp_path) as program:
        assert program.charge(GPU, 32 * MIB) == 0
        assert containers.run(runtime.update("updated")).status == 0
        assert program.charge(GPU, 32 * MIB + 1) == errno.EAGAIN
        assert program.charge(GPU, 32 * MIB) == 0
