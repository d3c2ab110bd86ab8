"""The guest itself: what comes out of it, and what it cannot do to the host."""

import re
import sys
from pathlib import Path

import pytest

from tests import debian, need
from tests.kernel import guest, kernels
from tests.kernel.device import GPUS
from tests.kernel.guest import Guest, GuestError, Outcome
from tests.kernel.kernels import BuildError


@pytest.fixture(scope="module")
def kernel() -> Path:
    try:
        guest.check_host()
        return kernels.kernel("new")
    except (debian.FetchError, BuildError, GuestError) as error:
        need.lacking(f"there is no guest: {error}")


def processes(word: str) -> list[str]:
    """Command lines with this word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


def test_status_and_output_come_out(kernel: Path, tmp_path: Path) -> None:
    script = "echo said; echo complained >&2; exit 3"
    assert guest.run(Guest(kernel), ["sh", "-c", script], tmp_path) == Outcome(
        3, "said\ncomplained\n"
    )


def test_environment_and_arguments_go_in(kernel: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", 'echo "$1 $NAME"', "sh", "it's one"]
    outcome = guest.run(Guest(kernel), command, tmp_path, {"NAME": "a $b"})
    assert outcome == Outcome(0, "it's one a $b\n")


def test_it_has_the_kernel_and_the_regions(kernel: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", "uname -r; cat /sys/fs/cgroup/dmem.capacity"]
    release, *regions = guest.run(Guest(kernel, GPUS), command, tmp_path).output.splitlines()
    assert re.match(r"7\.3\.", release)
    assert regions == [f"{gpu.name} {gpu.bytes}" for gpu in GPUS]


def test_this_python_runs_in_it(kernel: Path, tmp_path: Path) -> None:
    command = guest.python("-c", "import sys, pytest; print(sys.prefix, pytest.__version__)")
    outcome = guest.run(Guest(kernel, visible=guest.python_folders()), command, tmp_path)
    assert outcome == Outcome(0, f"{sys.prefix} {pytest.__version__}\n")


def test_it_writes_to_the_host_only_in_the_shared_folder(kernel: Path, tmp_path: Path) -> None:
    shared, visible = tmp_path / "shared", tmp_path / "visible"
    shared.mkdir()
    visible.mkdir()
    attempts = [Path("/etc/from-a-guest"), visible / "from-a-guest", Path("/tmp/from-a-guest")]
    command = ["touch", *map(str, attempts), str(shared / "from-a-guest")]
    guest.run(Guest(kernel, visible=[visible]), command, shared)
    assert [path for path in attempts if path.exists()] == []
    assert (shared / "from-a-guest").exists()


def test_it_ends_with_its_time(kernel: Path, tmp_path: Path) -> None:
    command = ["sh", "-c", "echo began; sleep 600"]
    with pytest.raises(GuestError, match=r"did not end within 5 s(.|\n)*began"):
        guest.run(Guest(kernel, seconds=5), command, tmp_path)
    assert processes(str(tmp_path)) == []


def test_it_is_told_when_the_kernel_stops(kernel: Path, tmp_path: Path) -> None:
    command = ["busybox", "poweroff", "-f"]
    with pytest.raises(GuestError, match="stopped before its command ended"):
        guest.run(Guest(kernel), command, tmp_path)
