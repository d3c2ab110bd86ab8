"""The hook on the real controller: what it sets, what it refuses, and what it leaves then."""

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel import judgement, share, tools
from tests.kernel.cgroup import ROOT, Cgroup
from tests.kernel.containers import Container, Outcome, Running
from tests.kernel.device import GPUS, MIB
from tests.kernel.guest import Region
from tests.kernel.kernels import Semantics
from tests.kernel.share import Part, Share
from tests.kernel.tools import Tools

GPU, OTHER = GPUS
UNKNOWN = Region("drm/0000:99:00.0/vram", 1024 * MIB)
NO_CAP = f"{GPU.name} max\n{OTHER.name} max\n"

# Programs of the host, whose files are the candidate's: one loads an auditor, one is static.
DYNAMIC, STATIC = "/bin/true", "/bin/busybox"


@dataclass(frozen=True)
class Candidate:
    """A container about to start."""

    pod: Cgroup
    cgroup: Cgroup
    """Below `pod`, where the controller is not enabled yet."""
    process: Running
    tools: Tools
    folder: Path

    def judge(
        self, parts: Sequence[Part], require: str, program: str = DYNAMIC, *more: str
    ) -> Outcome:
        """What the hook says to a share of these parts, given more arguments if there are any."""
        wanted = Share("candidate", parts)
        container = Container(
            "candidate",
            Path("/"),
            "tests/pod",
            [wanted.hook(str(self.tools.hook), require, "prestart", *more)],
            wanted.environment(),
            share.binds(self.tools, wanted),
        )
        return judgement.judge(container, self.process, program, self.folder)

    def enable(self) -> None:
        for cgroup in (ROOT, Cgroup(self.pod.path.parent), self.pod):
            assert cgroup.enable() == 0


@pytest.fixture
def candidate(pod: Cgroup, tmp_path: Path) -> Iterator[Candidate]:
    cgroup = pod.child("container")
    with judgement.member(cgroup) as process:
        yield Candidate(pod, cgroup, process, tools.inside(), tmp_path)


def assert_refused(outcome: Outcome, *words: str) -> None:
    """The hook said no, in one line with these words, to the user and to the log."""
    assert (outcome.status, outcome.stdout) == (1, "")
    [line] = outcome.stderr.splitlines()
    for word in words:
        assert word in line
    assert logged().endswith(line)


def logged() -> str:
    """The last line of the hook's log."""
    return Path("/var/log/amd-cdi/hook.log").read_text().splitlines()[-1]


def test_each_gpu_has_its_cap(candidate: Candidate) -> None:
    parts = [Part(GPU, 32 * MIB), Part(OTHER, 96 * MIB)]
    assert candidate.judge(parts, "dmem") == Outcome(0, "", "")
    assert candidate.process.charge(GPU, 32 * MIB + 1) == errno.EAGAIN
    assert candidate.process.charge(GPU, 32 * MIB) == 0
    assert candidate.process.charge(OTHER, 96 * MIB + 1) == errno.EAGAIN
    assert candidate.process.charge(OTHER, 96 * MIB) == 0


def test_bytes_of_two_partitions_of_a_gpu_add_up(candidate: Candidate) -> None:
    parts = [Part(GPU, 32 * MIB), Part(GPU, 16 * MIB)]
    assert candidate.judge(parts, "dmem") == Outcome(0, "", "")
    assert candidate.process.charge(GPU, 48 * MIB + 1) == errno.EAGAIN
    assert candidate.process.charge(GPU, 48 * MIB) == 0


def test_all_of_a_gpu_is_not_too_much(candidate: Candidate) -> None:
    assert candidate.judge([Part(GPU, GPU.bytes)], "dmem") == Outcome(0, "", "")
    assert candidate.cgroup.read("dmem.max") == f"{GPU.name} {GPU.bytes}\n{OTHER.name} max\n"


def test_the_same_again_changes_nothing(candidate: Candidate) -> None:
    for _ in range(2):
        assert candidate.judge([Part(GPU, MIB)], "dmem") == Outcome(0, "", "")
        assert candidate.cgroup.read("dmem.max") == f"{GPU.name} {MIB}\n{OTHER.name} max\n"


def test_many_at_once_each_get_their_own_cap(pod: Cgroup, tmp_path: Path) -> None:
    count = 64
    # A guest has one slow processor: 64 hooks take longer there than one may by itself.
    patient = ("--deadline", "120")
    with ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        candidates = []
        for number in range(count):
            cgroup, folder = pod.child(f"container{number}"), tmp_path / str(number)
            folder.mkdir()
            process = stack.enter_context(judgement.member(cgroup))
            candidates.append(Candidate(pod, cgroup, process, tools.inside(), folder))
        shares = [[Part(GPU, (number + 1) * MIB)] for number in range(count)]
        outcomes = list(
            pool.map(
                lambda one, parts: one.judge(parts, "dmem", DYNAMIC, *patient), candidates, shares
            )
        )
        assert outcomes == [Outcome(0, "", "")] * count
        caps = [one.cgroup.value("dmem.max", GPU) for one in candidates]
        assert caps == [str((number + 1) * MIB) for number in range(count)]


IMPOSSIBLE = [
    pytest.param([Part(UNKNOWN, MIB)], ["0000:99:00.0"], id="unknown region"),
    pytest.param([Part(GPU, MIB), Part(UNKNOWN, MIB)], ["0000:99:00.0"], id="second unknown"),
    pytest.param(
        [Part(GPU, GPU.bytes + 1)], [str(GPU.bytes), str(GPU.bytes + 1)], id="above capacity"
    ),
    pytest.param(
        [Part(GPU, MIB), Part(OTHER, OTHER.bytes + 1)],
        [str(OTHER.bytes), str(OTHER.bytes + 1)],
        id="second above capacity",
    ),
    pytest.param(
        [Part(GPU, GPU.bytes), Part(GPU, 1)],
        [str(GPU.bytes), str(GPU.bytes + 1)],
        id="partitions above capacity",
    ),
]


@pytest.mark.parametrize(("parts", "words"), IMPOSSIBLE)
class TestImpossibleShare:
    def test_is_refused(
        self, candidate: Candidate, parts: Sequence[Part], words: Sequence[str]
    ) -> None:
        assert_refused(candidate.judge(parts, "dmem"), *words)
        assert candidate.cgroup.read("dmem.max") == NO_CAP

    def test_is_left_to_the_library_under_any(
        self, candidate: Candidate, parts: Sequence[Part], words: Sequence[str]
    ) -> None:
        assert candidate.judge(parts, "any") == Outcome(0, "", "")
        assert "memory held by the library" in logged()
        assert candidate.cgroup.read("dmem.max") == NO_CAP

    def test_is_refused_under_any_where_the_library_cannot_hold_it(
        self, candidate: Candidate, parts: Sequence[Part], words: Sequence[str]
    ) -> None:
        assert_refused(candidate.judge(parts, "any", STATIC), *words, STATIC)
        assert candidate.cgroup.read("dmem.max") == NO_CAP


class TestMemoryOfAnApu:
    """The kernel has a region for what the firmware set aside, and would take a cap on it."""

    APU = Part(GPU, 32 * MIB, shared=True)
    UNCHARGED = f"dmem does not charge the memory that {GPU.name.split('/')[1]} has of the host's"

    @pytest.fixture(autouse=True)
    def enabled(self, candidate: Candidate) -> None:
        candidate.enable()

    def test_is_left_to_the_library_under_any(self, candidate: Candidate) -> None:
        assert candidate.judge([self.APU], "any") == Outcome(0, "", "")
        assert "memory held by the library" in logged()
        assert candidate.cgroup.read("dmem.max") == NO_CAP

    def test_is_refused_under_any_where_the_library_cannot_hold_it(
        self, candidate: Candidate
    ) -> None:
        assert_refused(candidate.judge([self.APU], "any", STATIC), self.UNCHARGED, STATIC)
        assert candidate.cgroup.read("dmem.max") == NO_CAP

    def test_is_refused_under_dmem(self, candidate: Candidate) -> None:
        assert_refused(candidate.judge([self.APU], "dmem"), self.UNCHARGED)
        assert candidate.cgroup.read("dmem.max") == NO_CAP

    def test_leaves_the_other_part_of_the_share_its_cap(self, candidate: Candidate) -> None:
        assert candidate.judge([Part(OTHER, 8 * MIB), self.APU], "any") == Outcome(0, "", "")
        assert f"memory held by dmem {OTHER.name}={8 * MIB} and the library" in logged()
        assert candidate.process.charge(OTHER, 8 * MIB + 1) == errno.EAGAIN
        assert candidate.process.charge(GPU, GPU.bytes) == 0

    def test_without_the_library_the_other_part_gets_no_cap(self, candidate: Candidate) -> None:
        assert_refused(
            candidate.judge([Part(OTHER, 8 * MIB), self.APU], "any", STATIC), self.UNCHARGED
        )
        assert candidate.cgroup.read("dmem.max") == NO_CAP


class TestBusyAncestor:
    def test_is_refused(self, candidate: Candidate) -> None:
        with judgement.member(candidate.pod):
            assert_refused(candidate.judge([Part(GPU, MIB)], "dmem"), "EBUSY", "tests/pod")
        assert candidate.cgroup.files() == set()

    def test_is_left_to_the_library_under_any(self, candidate: Candidate) -> None:
        with judgement.member(candidate.pod):
            assert candidate.judge([Part(GPU, MIB)], "any") == Outcome(0, "", "")
        assert "memory held by the library" in logged()

    def test_does_not_matter_once_it_is_enabled(self, candidate: Candidate) -> None:
        candidate.enable()
        assert candidate.judge([Part(GPU, MIB)], "dmem") == Outcome(0, "", "")
        assert candidate.cgroup.value("dmem.max", GPU) == str(MIB)


class TestCapThatReadsBackDifferent:
    """Below the present use the old kernel takes a cap and does nothing."""

    PARTS = (Part(OTHER, 2 * MIB), Part(GPU, 4 * MIB))

    @pytest.fixture(autouse=True)
    def use(self, candidate: Candidate) -> None:
        candidate.enable()
        assert candidate.process.charge(GPU, 8 * MIB) == 0

    def test_is_refused(self, candidate: Candidate, semantics: Semantics) -> None:
        outcome = candidate.judge(self.PARTS, "dmem")
        if semantics == "old":
            assert_refused(outcome, str(4 * MIB), "max read back")
            assert candidate.cgroup.read("dmem.max") == NO_CAP
        else:
            assert outcome == Outcome(0, "", "")
            assert candidate.process.charge(GPU, 1) == errno.EAGAIN
            assert candidate.cgroup.value("dmem.max", OTHER) == str(2 * MIB)

    def test_gives_way_to_the_caps_of_before(
        self, candidate: Candidate, semantics: Semantics
    ) -> None:
        candidate.cgroup.cap(OTHER, 5 * MIB)
        status = candidate.judge(self.PARTS, "dmem").status
        expected = {"old": (1, str(5 * MIB)), "new": (0, str(2 * MIB))}
        assert (status, candidate.cgroup.value("dmem.max", OTHER)) == expected[semantics]

    def test_is_left_to_the_library_under_any(
        self, candidate: Candidate, semantics: Semantics
    ) -> None:
        assert candidate.judge(self.PARTS, "any") == Outcome(0, "", "")
        holder = {"old": "the library", "new": "dmem"}
        assert f"memory held by {holder[semantics]}" in logged()


@pytest.mark.boot("cgroup_disable=dmem")
class TestKernelWithoutTheController:
    def test_is_refused(self, candidate: Candidate) -> None:
        assert_refused(candidate.judge([Part(GPU, MIB)], "dmem"), "CONFIG_CGROUP_DMEM")

    def test_is_left_to_the_library_under_any(self, candidate: Candidate) -> None:
        assert candidate.judge([Part(GPU, MIB)], "any") == Outcome(0, "", "")
        assert "memory held by the library" in logged()

    def test_is_refused_under_any_where_the_library_cannot_hold_it(
        self, candidate: Candidate
    ) -> None:
        outcome = candidate.judge([Part(GPU, MIB)], "any", STATIC)
        assert_refused(outcome, "CONFIG_CGROUP_DMEM", STATIC)
