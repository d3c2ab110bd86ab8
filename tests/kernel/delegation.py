"""The tests of the folder `inside` run in guests, all those that want the same boot in one.

Its conftest.py imports the hooks from here. Outside, a test of that folder is only a name: a guest
runs pytest for it, and what is reported there is reported here again. Inside, nothing is special.
A test that wants kernel parameters at its boot is marked `boot("name=value", ...)`.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from threading import BoundedSemaphore, Thread
from typing import Literal, cast

import pytest

from tests import debian, need
from tests.kernel import guest, kernels, runtimes, tools
from tests.kernel.device import GPUS
from tests.kernel.guest import Guest, GuestError
from tests.kernel.kernels import BuildError, Semantics

Reports = dict[str, list[pytest.TestReport]]
"""What was reported of each test, by its node id."""

_FOLDER = Path(__file__).with_name("inside")

_FILE = "AMD_CDI_GUEST_REPORTS"
"""Inside a guest, names the file for its reports."""

# Of the host's environment, what the tests inside go by.
_KEPT = ("CI", "AMD_CDI_SHARED")


@dataclass(frozen=True)
class Boot:
    """Tests with the same one share a guest."""

    semantics: Semantics
    parameters: tuple[str, ...]


Start = Callable[[Boot, Path], str]
"""Runs the tests that a shared folder names in a guest; answers what the guest said."""

_TOLD = pytest.StashKey[Mapping[Boot, "Future[Reports]"]]()


@pytest.fixture(params=["new", "old"], autouse=True)
def semantics(request: pytest.FixtureRequest) -> Semantics:
    """Of the kernel that the test runs on."""
    chosen: Semantics = request.param
    return chosen


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "boot(parameter, ...): run on a kernel started with these")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Literal[True] | None:
    # pytest asks a folder's hook about tests of every folder.
    if _FILE in os.environ or not _is_ours(item):
        return None
    stash = item.session.stash
    if _TOLD not in stash:
        stash[_TOLD] = _started([other for other in item.session.items if _is_ours(other)])
    reports = stash[_TOLD][_boot(item)].result()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in reports[item.nodeid]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Inside, hand each report out at once: a guest that dies keeps those it made."""
    report = yield
    if _FILE in os.environ:
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with Path(os.environ[_FILE]).open("a") as file:
            file.write(json.dumps(data) + "\n")
    return report


def _is_ours(item: pytest.Item) -> bool:
    return _FOLDER in item.path.parents


def _boot(item: pytest.Item) -> Boot:
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("boot")
    semantics = cast("Semantics", item.callspec.params["semantics"])
    return Boot(semantics, marker.args if marker else ())


def _started(items: Sequence[pytest.Item]) -> Mapping[Boot, "Future[Reports]"]:
    """Start the guests of these tests, in their order, as many at a time as there are CPUs."""
    boots: dict[Boot, list[pytest.Item]] = {}
    for item in items:
        boots.setdefault(_boot(item), []).append(item)
    told: dict[Boot, Future[Reports]] = {boot: Future() for boot in boots}
    turns = BoundedSemaphore(len(os.sched_getaffinity(0)))

    def run(boot: Boot, start: Start) -> None:
        with turns:
            try:
                told[boot].set_result(_reports(boots[boot], boot, start))
            except Exception as error:  # noqa: BLE001 - raised again where the result is asked for
                told[boot].set_exception(error)

    reason = ""
    try:
        start = _ready(items[0].config)
    except (debian.FetchError, BuildError, GuestError, CalledProcessError) as error:
        reason = f"there is no guest to run it in: {error}"
    if reason:
        for boot, its in boots.items():
            told[boot].set_result({i.nodeid: [_told(i, lambda: need.lacking(reason))] for i in its})
        return told
    for boot in boots:
        # Nobody waits for a daemon when the tests are interrupted, and its guest ends with it.
        Thread(target=run, args=[boot, start], daemon=True).start()
    return told


def _ready(config: pytest.Config) -> Start:
    """Make ready what all guests need; the answer runs pytest with these tests in one of them."""
    guest.check_host()
    folder = tempfile.TemporaryDirectory(prefix="amd-cdi-tools-")
    config.add_cleanup(folder.cleanup)
    own = tools.build(Path(folder.name))
    chosen = {name: kernels.kernel(name) for name in kernels.SEMANTICS}
    runtimes.fetch()
    environment = {
        "AMD_CDI_CACHE": str(debian.cache()),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **own.environment(),
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
    }
    visible = [*guest.python_folders(), debian.cache(), own.folder]

    def start(boot: Boot, shared: Path) -> str:
        machine = Guest(chosen[boot.semantics], GPUS, visible, boot.parameters)
        command = guest.python("-m", "pytest", "-p", "no:cacheprovider", f"@{shared}/tests")
        reports = {_FILE: f"{shared}/reports"}
        try:
            return guest.run(machine, command, shared, {**environment, **reports}).output
        except GuestError as error:
            return str(error)

    return start


def _reports(items: Sequence[pytest.Item], boot: Boot, start: Start) -> Reports:
    """Run these tests in a guest; each gets at least one report."""
    reports: Reports = {item.nodeid: [] for item in items}
    config = items[0].config
    with tempfile.TemporaryDirectory(prefix="amd-cdi-guest-") as folder:
        shared = Path(folder)
        (shared / "reports").touch()
        (shared / "tests").write_text("".join(f"{item.nodeid}\n" for item in items))
        said = start(boot, shared)
        for line in (shared / "reports").read_text().splitlines():
            data = json.loads(line)
            if isinstance(data["longrepr"], list):
                # JSON has no tuples; of a skipped test this is place and reason.
                data["longrepr"] = tuple(data["longrepr"])
            report = config.hook.pytest_report_from_serializable(config=config, data=data)
            reports[report.nodeid].append(report)
    message = f"the guest did not come to the end of this test:\n{said}"
    for item in items:
        if not any(report.when == "teardown" for report in reports[item.nodeid]):
            reports[item.nodeid].append(_told(item, lambda: pytest.fail(message, pytrace=False)))
    return reports


def _told(item: pytest.Item, ending: Callable[[], None]) -> pytest.TestReport:
    """The report of a test that ended so before it began."""
    call = pytest.CallInfo.from_call(ending, "setup")
    return pytest.TestReport.from_item_and_call(item, call)
