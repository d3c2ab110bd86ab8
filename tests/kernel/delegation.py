"""Tests that run inside guests, all those that want the same boot in one guest.

A folder's conftest.py imports the hooks from here. Outside, a test of that folder is only a name:
a guest runs pytest for it, and what is reported there is reported here again. Inside, nothing is
special. A test that wants kernel parameters at its boot is marked `boot("name=value", ...)`.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import pytest

from tests import debian
from tests.integration import need
from tests.kernel import guest, kernels, runtimes
from tests.kernel.device import GPUS
from tests.kernel.guest import Guest, GuestError
from tests.kernel.kernels import BuildError, Semantics

Reports = dict[str, list[pytest.TestReport]]
"""What was reported of each test, by its node id."""

_FILE = "AMD_CDI_GUEST_REPORTS"
"""Inside a guest, names the file for its reports."""

# Of the host's environment, what the tests inside go by.
_KEPT = ("CI", "AMD_CDI_SHARED")


@dataclass(frozen=True)
class Boot:
    """Tests with the same one share a guest."""

    module: Path
    semantics: Semantics
    parameters: tuple[str, ...]


_TOLD = pytest.StashKey[dict[Boot, Reports]]()


@pytest.fixture(params=["new", "old"], autouse=True)
def semantics(request: pytest.FixtureRequest) -> Semantics:
    """Of the kernel that the test runs on."""
    chosen: Semantics = request.param
    return chosen


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "boot(parameter, ...): run on a kernel started with these")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Literal[True] | None:
    if _FILE in os.environ:
        return None
    told = item.session.stash.setdefault(_TOLD, {})
    boot = _boot(item)
    if boot not in told:
        module = [other for other in item.session.items if other.path == item.path]
        told[boot] = _reports([other for other in module if _boot(other) == boot], boot)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in told[boot][item.nodeid]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    """Inside, hand each report out at once: a guest that dies keeps those it made."""
    report = yield
    if _FILE in os.environ:
        data = item.config.hook.pytest_report_to_serializable(config=item.config, report=report)
        with Path(os.environ[_FILE]).open("a") as file:
            file.write(json.dumps(data) + "\n")
    return report


def _boot(item: pytest.Item) -> Boot:
    assert isinstance(item, pytest.Function)
    marker = item.get_closest_marker("boot")
    return Boot(
        item.path,
        cast("Semantics", item.callspec.params["semantics"]),
        marker.args if marker else (),
    )


def _reports(items: Sequence[pytest.Item], boot: Boot) -> Reports:
    """Run these tests in a guest; each gets at least one report."""
    reports: Reports = {item.nodeid: [] for item in items}
    with tempfile.TemporaryDirectory(prefix="amd-cdi-guest-") as folder:
        try:
            said = _run(items, boot, Path(folder))
        except (debian.FetchError, BuildError) as error:
            reason = str(error)
            return {i.nodeid: [_report(i, lambda: need.lacking(reason))] for i in items}
        config = items[0].config
        for line in (Path(folder) / "reports").read_text().splitlines():
            report = config.hook.pytest_report_from_serializable(
                config=config, data=json.loads(line)
            )
            reports[report.nodeid].append(report)
    message = f"the guest did not come to the end of this test:\n{said}"
    for item in items:
        if not any(report.when == "teardown" for report in reports[item.nodeid]):
            reports[item.nodeid].append(_report(item, lambda: pytest.fail(message, pytrace=False)))
    return reports


def _run(items: Sequence[pytest.Item], boot: Boot, shared: Path) -> str:
    """Answer what the guest said; its reports are in `shared`."""
    reports, names = shared / "reports", shared / "tests"
    reports.touch()
    names.write_text("".join(f"{item.nodeid}\n" for item in items))
    kernel = kernels.kernel(boot.semantics)
    runtimes.fetch()
    visible = [*guest.python_folders(), debian.cache()]
    command = guest.python("-m", "pytest", "-p", "no:cacheprovider", f"@{names}")
    environment = {
        _FILE: str(reports),
        "AMD_CDI_CACHE": str(debian.cache()),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **{name: os.environ[name] for name in _KEPT if name in os.environ},
    }
    try:
        chosen = Guest(kernel, GPUS, visible, boot.parameters)
        return guest.run(chosen, command, shared, environment).output
    except GuestError as error:
        return str(error)


def _report(item: pytest.Item, ending: Callable[[], None]) -> pytest.TestReport:
    """A report of a test that ended so before it began."""
    call = pytest.CallInfo.from_call(ending, "setup")
    return pytest.TestReport.from_item_and_call(item, call)
