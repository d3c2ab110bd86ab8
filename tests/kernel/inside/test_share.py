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

GPU, OTHER = GPUS

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
    whole = make(Share("whole", [Part(GPU, 64 * MIB)]), stage)
    beyond = make(Share("beyond", [Part(GPU, 64 * MIB)]), stage)
    assert containers.charge(runtime, whole, tmp_path, GPU, 64 * MIB) == Outcome(0, "0\n", "")
    refused = containers.charge(runtime, beyond, tmp_path, GPU, 64 * MIB + 1)
    assert refused == Outcome(errno.EAGAIN, f"{errno.EAGAIN}\n", "")


def test_has_its_bytes_of_each_gpu(runtime: Runtime, make: Make, tmp_path: Path) -> None:
    container = make(Share("two", [Part(GPU, 32 * MIB), Part(OTHER, 96 * MIB)]))
    with containers.running(runtime, container, tmp_path) as program:
        assert program.charge(GPU, 32 * MIB + 1) == errno.EAGAIN
        assert program.charge(GPU, 32 * MIB) == 0
        assert program.charge(OTHER, 96 * MIB + 1) == errno.EAGAIN
        assert program.charge(OTHER, 96 * MIB) == 0


def test_bytes_of_two_partitions_of_a_gpu_add_up(
    runtime: Runtime, make: Make, tmp_path: Path
) -> None:
    container = make(Share("partitions", [Part(GPU, 32 * MIB), Part(GPU, 16 * MIB)]))
    with containers.running(runtime, container, tmp_path) as program:
        assert program.charge(GPU, 48 * MIB + 1) == errno.EAGAIN
        assert program.charge(GPU, 48 * MIB) == 0


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
