"""The tests of this folder run inside guests: each module in one guest with each kernel.

Outside, a test is only a name: the guest of its module runs pytest for all that were selected of
it, and what is reported there is reported here again. Inside, nothing is special.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, cast

import pytest

from tests.debian import FetchError
from tests.integration import need
from tests.kernel import guest, kernels
from tests.kernel.device import GPUS
from tests.kernel.guest import Guest, GuestError
from tests.kernel.kernels import BuildError, Semantics

Reports = dict[str, list[pytest.TestReport]]
"""What was reported of each test, by its node id."""

_FILE = "AMD_CDI_GUEST_REPORTS"
"""Inside a guest, names the file for its reports."""

_TOLD = pytest.StashKey[dict[tuple[Path, Semantics], Reports]]()


@pytest.fixture(params=["new", "old"], autouse=True)
def semantics(request: pytest.FixtureRequest) -> Semantics:
    """Of the kernel that the test runs on."""
    chosen: Semantics = request.param
    return chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Literal[True] | None:
    if _FILE in os.environ:
        return None
    told = item.session.stash.setdefault(_TOLD, {})
    group = _group(item)
    if group not in told:
        here = [other for other in item.session.items if other.path == item.path]
        told[group] = _reports([other for other in here if _group(other) == group], group[1])
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in told[group][item.nodeid]:
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


def _group(item: pytest.Item) -> tuple[Path, Semantics]:
    """Tests of one group share a guest."""
    assert isinstance(item, pytest.Function)
    return item.path, cast("Semantics", item.callspec.params["semantics"])


def _reports(items: Sequence[pytest.Item], semantics: Semantics) -> Reports:
    """Run these tests in a guest."""
    reports: Reports = {item.nodeid: [] for item in items}
    with tempfile.TemporaryDirectory(prefix="amd-cdi-guest-") as folder:
        try:
            said = _run(items, semantics, Path(folder))
        except (FetchError, BuildError) as error:
            reason = str(error)
            return {i.nodeid: [_report(i, lambda: need.lacking(reason))] for i in items}
        for line in (Path(folder) / "reports").read_text().splitlines():
            data = json.loads(line)
            report = items[0].config.hook.pytest_report_from_serializable(
                config=items[0].config, data=data
            )
            reports[report.nodeid].append(report)
    message = f"the guest did not come to the end of this test:\n{said}"
    for item in items:
        if not any(report.when == "teardown" for report in reports[item.nodeid]):
            reports[item.nodeid].append(_report(item, lambda: pytest.fail(message, pytrace=False)))
    return reports


def _run(items: Sequence[pytest.Item], semantics: Semantics, shared: Path) -> str:
    """Answer what the guest said; its reports are in `shared`."""
    reports, names = shared / "reports", shared / "tests"
    reports.touch()
    names.write_text("".join(f"{item.nodeid}\n" for item in items))
    chosen = Guest(kernels.kernel(semantics), GPUS, guest.python_folders())
    command = guest.python("-m", "pytest", "-p", "no:cacheprovider", f"@{names}")
    environment = {_FILE: str(reports), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        return guest.run(chosen, command, shared, environment).output
    except GuestError as error:
        return str(error)


def _report(item: pytest.Item, ending: Callable[[], None]) -> pytest.TestReport:
    """A report of a test that ended so before it began."""
    call = pytest.CallInfo.from_call(ending, "setup")
    return pytest.TestReport.from_item_and_call(item, call)
