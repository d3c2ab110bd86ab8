"""What the dmem controller does with caps, and what it refuses: the facts the hook stands on."""

import errno
from collections.abc import Iterator

import pytest

from tests.kernel import device
from tests.kernel.cgroup import ROOT, Cgroup
from tests.kernel.device import GPUS, MIB, Device
from tests.kernel.guest import Region
from tests.kernel.kernels import Semantics

GPU, OTHER = GPUS
UNKNOWN = Region("drm/0000:99:00.0/vram", MIB)


@pytest.fixture
def top() -> Iterator[Cgroup]:
    """A cgroup below the root, with the controller's files."""
    ROOT.enable()
    made = ROOT.child("kubepods")
    yield made
    made.remove()


@pytest.fixture
def pod(top: Cgroup) -> Cgroup:
    """One level below, without the controller's files."""
    return top.child("pod")


@pytest.fixture
def container(top: Cgroup, pod: Cgroup) -> Cgroup:
    """Two levels below, with the controller's files and no cap."""
    assert top.enable() == 0
    assert pod.enable() == 0
    return pod.child("container")


@pytest.fixture
def driver() -> Iterator[Device]:
    with device.opened() as opened:
        yield opened


def charge(driver: Device, cgroup: Cgroup, region: Region, count: int) -> int:
    """What a process of this cgroup is answered when it allocates so many bytes."""
    with cgroup.joined():
        return driver.charge(region, count)


def test_the_root_lists_the_regions_and_has_no_cap(container: Cgroup) -> None:
    assert ROOT.read("dmem.capacity") == "".join(f"{gpu.name} {gpu.bytes}\n" for gpu in GPUS)
    assert ROOT.files() == {"dmem.capacity", "dmem.current"}


def test_the_root_lists_the_regions_without_the_controller_enabled() -> None:
    assert ROOT.write("cgroup.subtree_control", "-dmem") == 0
    assert ROOT.read("dmem.capacity") == "".join(f"{gpu.name} {gpu.bytes}\n" for gpu in GPUS)


def test_a_cgroup_has_no_cap_at_first(container: Cgroup) -> None:
    assert container.read("dmem.max") == f"{GPU.name} max\n{OTHER.name} max\n"


def test_files_of_a_cgroup(container: Cgroup, semantics: Semantics) -> None:
    files = {"dmem.current", "dmem.low", "dmem.max", "dmem.min"}
    assert container.files() == (files | {"dmem.peak"} if semantics == "new" else files)


class TestEnabling:
    def test_needs_the_parent_to_be_enabled_first(self, pod: Cgroup) -> None:
        assert pod.enable() == errno.ENOENT

    def test_goes_from_the_top_down_under_live_processes(self, top: Cgroup, pod: Cgroup) -> None:
        container = pod.child("container")
        with container.joined():
            assert container.files() == set()
            assert top.enable() == 0
            assert pod.enable() == 0
            assert container.cap(GPU, MIB) == 0

    def test_twice_is_as_once(self, container: Cgroup, pod: Cgroup) -> None:
        container.cap(GPU, MIB)
        assert pod.enable() == 0
        assert container.value("dmem.max", GPU) == str(MIB)

    def test_is_refused_where_an_ancestor_holds_processes(self, top: Cgroup, pod: Cgroup) -> None:
        assert top.enable() == 0
        with pod.joined():
            assert pod.enable() == errno.EBUSY
        assert pod.enable() == 0

    def test_taken_back_drops_the_cap(self, container: Cgroup, pod: Cgroup) -> None:
        container.cap(GPU, MIB)
        assert pod.write("cgroup.subtree_control", "-dmem") == 0
        assert pod.enable() == 0
        assert container.value("dmem.max", GPU) == "max"


class TestCap:
    def test_holds_to_the_byte(self, container: Cgroup, driver: Device) -> None:
        assert container.cap(GPU, MIB) == 0
        assert container.value("dmem.max", GPU) == str(MIB)
        assert charge(driver, container, GPU, MIB + 1) == errno.EAGAIN
        assert charge(driver, container, GPU, MIB) == 0
        assert charge(driver, container, GPU, 1) == errno.EAGAIN
        assert container.value("dmem.current", GPU) == str(MIB)

    def test_need_not_be_whole_pages(self, container: Cgroup, driver: Device) -> None:
        assert container.cap(GPU, 4097) == 0
        assert charge(driver, container, GPU, 4098) == errno.EAGAIN
        assert charge(driver, container, GPU, 4097) == 0

    def test_is_of_one_region(self, container: Cgroup, driver: Device) -> None:
        container.cap(GPU, MIB)
        assert container.value("dmem.max", OTHER) == "max"
        assert charge(driver, container, OTHER, 2 * MIB) == 0

    def test_can_be_above_capacity(self, container: Cgroup) -> None:
        """The kernel does not mind: it is the hook that has to."""
        assert container.cap(GPU, GPU.bytes + 1) == 0
        assert container.value("dmem.max", GPU) == str(GPU.bytes + 1)

    def test_bounds_all_cgroups_below_together(
        self, container: Cgroup, pod: Cgroup, driver: Device
    ) -> None:
        sibling = pod.child("sibling")
        pod.cap(GPU, 10 * MIB)
        assert charge(driver, container, GPU, 6 * MIB) == 0
        assert charge(driver, sibling, GPU, 6 * MIB) == errno.EAGAIN
        assert charge(driver, sibling, GPU, 4 * MIB) == 0
        assert pod.value("dmem.current", GPU) == str(10 * MIB)

    def test_holds_for_cgroups_that_the_container_makes(
        self, container: Cgroup, driver: Device
    ) -> None:
        container.cap(GPU, MIB)
        inner = container.child("inner")
        assert charge(driver, inner, GPU, MIB + 1) == errno.EAGAIN
        assert charge(driver, inner, GPU, MIB) == 0

    def test_goes_with_the_region(self, container: Cgroup, driver: Device) -> None:
        region = Region("drm/0000:c3:00.0/vram", 16 * MIB)
        assert driver.register(region) == 0
        container.cap(region, MIB)
        assert driver.unregister(region) == 0
        assert driver.register(region) == 0
        assert container.value("dmem.max", region) == "max"
        assert driver.unregister(region) == 0


class TestCapBelowUse:
    """Where the two kernels differ: only reading back tells."""

    def test_is_set_or_silently_not(
        self, container: Cgroup, driver: Device, semantics: Semantics
    ) -> None:
        assert charge(driver, container, GPU, 8 * MIB) == 0
        assert container.cap(GPU, 4 * MIB) == 0
        expected = {"new": str(4 * MIB), "old": "max"}
        assert container.value("dmem.max", GPU) == expected[semantics]
        answers = {"new": errno.EAGAIN, "old": 0}
        assert charge(driver, container, GPU, 1) == answers[semantics]

    def test_leaves_what_is_in_use(self, container: Cgroup, driver: Device) -> None:
        assert charge(driver, container, GPU, 8 * MIB) == 0
        container.cap(GPU, 4 * MIB)
        assert container.value("dmem.current", GPU) == str(8 * MIB)

    def test_equal_to_it_is_set_by_both(self, container: Cgroup, driver: Device) -> None:
        assert charge(driver, container, GPU, 8 * MIB) == 0
        assert container.cap(GPU, 8 * MIB) == 0
        assert container.value("dmem.max", GPU) == str(8 * MIB)
        assert charge(driver, container, GPU, 1) == errno.EAGAIN


class TestWrite:
    @pytest.mark.parametrize(
        ("text", "read"),
        [
            ("2097152", "2097152"),
            ("2097152\n", "2097152"),
            ("0", "0"),
            ("1M", str(MIB)),
            ("0x100000", str(MIB)),
            pytest.param("010", "8", id="octal"),
            ("max", "max"),
        ],
    )
    def test_is_taken(self, container: Cgroup, text: str, read: str) -> None:
        container.cap(GPU, 12345)
        assert container.cap(GPU, text) == 0
        assert container.value("dmem.max", GPU) == read

    @pytest.mark.parametrize("value", ["", "-1", "1.5G", "1MB", "Max", "abc", " 1048576"])
    def test_is_refused(self, container: Cgroup, value: str) -> None:
        container.cap(GPU, 12345)
        assert container.cap(GPU, value) == errno.EINVAL
        assert container.value("dmem.max", GPU) == "12345"

    def test_of_an_unknown_region_is_refused(self, container: Cgroup) -> None:
        before = container.read("dmem.max")
        assert container.cap(UNKNOWN, MIB) == errno.EINVAL
        assert container.read("dmem.max") == before

    @pytest.mark.parametrize(
        "value", [(2**63 - 1) // 4096, 2**63 - 1, 2**63, 2**64 - 1, 2**64], ids=hex
    )
    def test_of_so_much_reads_back_as_no_cap(self, container: Cgroup, value: int) -> None:
        container.cap(GPU, 12345)
        assert container.cap(GPU, value) == 0
        assert container.value("dmem.max", GPU) == "max"

    def test_of_a_little_less_reads_back(self, container: Cgroup) -> None:
        value = (2**63 - 1) // 4096 - 1
        assert container.cap(GPU, value) == 0
        assert container.value("dmem.max", GPU) == str(value)

    def test_of_two_regions_is_refused_or_half_done(
        self, container: Cgroup, semantics: Semantics
    ) -> None:
        two = f"{GPU.name} {MIB}\n{OTHER.name} {2 * MIB}\n"
        half = f"{GPU.name} {MIB}\n{UNKNOWN.name} {MIB}\n"
        if semantics == "new":
            assert container.write("dmem.max", two) == errno.EINVAL
            assert container.write("dmem.max", half) == errno.EINVAL
            assert container.value("dmem.max", GPU) == "max"
        else:
            assert container.write("dmem.max", two) == 0
            assert container.value("dmem.max", OTHER) == str(2 * MIB)
            container.cap(GPU, "max")
            assert container.write("dmem.max", half) == errno.EINVAL
            assert container.value("dmem.max", GPU) == str(MIB)

    def test_by_write_for_each_region_is_taken(self, container: Cgroup) -> None:
        assert container.cap(GPU, MIB) == 0
        assert container.cap(OTHER, 2 * MIB) == 0
        assert container.read("dmem.max") == f"{GPU.name} {MIB}\n{OTHER.name} {2 * MIB}\n"


class TestCharge:
    def test_goes_when_the_file_is_closed(self, container: Cgroup) -> None:
        with device.opened() as driver:
            assert charge(driver, container, GPU, MIB) == 0
            assert container.value("dmem.current", GPU) == str(MIB)
        assert container.value("dmem.current", GPU) == "0"

    def test_stays_behind_when_the_process_moves(
        self, container: Cgroup, pod: Cgroup, driver: Device
    ) -> None:
        assert charge(driver, container, GPU, MIB) == 0
        container.remove()
        assert pod.value("dmem.current", GPU) == str(MIB)
