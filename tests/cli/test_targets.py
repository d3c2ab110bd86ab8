"""Targets that cannot be written: unwritable, full and read-only ones."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import need
from tests.cli.host import Host, snapshot

TINY = 'mount -t tmpfs -o size=4k none "$0" && exec "$@"'
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
HALF = ("create", "a", "--gpu", "0", "--cores", "50", "--memory", "1GiB")


def in_a_namespace(host: Host, script: str, folder: Path) -> Host:
    """Return the host with a mount of its own over a folder."""
    need.namespaces()
    return host.under("unshare", "--mount", "sh", "-c", script, str(folder))


@pytest.fixture
def used(radeons: Host) -> Host:
    """A node with a spec and a share."""
    radeons.share("create", "a", "--gpu", "0", "--cores", "25", "--memory", "1GiB").done()
    return radeons


CHANGES = (
    ["generate", "--split", "2"],
    ["share", "create", "b", "--gpu", "0", "--cores", "25", "--memory", "1GiB"],
    ["share", "remove", "a"],
)


@pytest.mark.parametrize("folder", ["cdi", "state", "state/shares"])
def test_read_only(used: Host, folder: str) -> None:
    host = in_a_namespace(used, READ_ONLY, used.folder / folder)
    before = snapshot(used.folder)
    changes = CHANGES if folder != "state/shares" else CHANGES[1:2]
    for change in changes:
        host.run(*change).failed("Read-only file system", "choose a place on a writable filesystem")
    assert snapshot(used.folder) == before


def test_full_spec_directory(radeons: Host) -> None:
    """One page: the spec does not fit, and what was written of it is removed again."""
    radeons.spec_dir.mkdir()
    script = f'{TINY.split(" && ", maxsplit=1)[0]} && "$@"; status=$?; ls -A "$0"; exit $status'
    host = in_a_namespace(radeons, script, radeons.spec_dir)
    result = host.generate("--split", "4").failed("No space left on device", "free some space")
    assert result.out == ".amd-cdi.lock\n"
    assert not radeons.ledger_file.exists()
    assert list((radeons.state_dir / "shares").iterdir()) == []


@pytest.mark.parametrize("folder", ["state/shares", "state"])
def test_full_state_directory(used: Host, folder: str) -> None:
    filled = 'mount -t tmpfs -o size=8k none "$0" && cp -a "$0.copy/." "$0" && exec "$@"'
    shutil.copytree(used.folder / folder, used.folder / f"{folder}.copy")
    host = in_a_namespace(used, filled, used.folder / folder)
    before = snapshot(used.folder)
    result = host.generate("--split", "4")
    result.failed("No space left on device", str(used.folder / folder))
    assert snapshot(used.folder) == before


@pytest.mark.parametrize("folder", ["cdi", "state"])
def test_unwritable(used: Host, folder: str) -> None:
    if os.geteuid() == 0:
        need.program("setpriv")
        # Root without this capability minds the modes of files as everyone does.
        drop = "-dac_override,-dac_read_search"
        host = used.under("setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}")
    else:
        host = used
    (used.folder / folder).chmod(0o555)
    before = snapshot(used.folder)
    try:
        for change in CHANGES:
            host.run(*change).failed("Permission denied", "run it as root")
        # Looking needs no permission to write.
        host.run("list").done()
        host.share("list").done()
        host.run("diff").done()
    finally:
        (used.folder / folder).chmod(0o755)
    (used.folder / folder).chmod(0o555)
    assert snapshot(used.folder) == before


def test_a_directory_that_cannot_be_made(radeons: Host) -> None:
    (radeons.folder / "file").write_text("")
    before = snapshot(radeons.folder)
    radeons.generate("--spec-dir", "file/cdi").failed("file/cdi", "Not a directory")
    radeons.generate("--state-dir", "file/state").failed("file/state")
    radeons.generate("--output", "/proc/x/y.yaml").failed("/proc/x")
    assert snapshot(radeons.folder) == before


def test_usage_regions_on_a_filesystem_of_their_own(radeons: Host) -> None:
    usage = radeons.folder / "usage"
    usage.mkdir()
    script = (
        'mount -t tmpfs -o size=1m none "$0" && "$@"; status=$?; '
        'stat -c "%n %a %s" "$0"/*; exit $status'
    )
    host = in_a_namespace(radeons, script, usage)
    arguments = ["--gpu", "0", "--gpu", "1", "--cores", "50", "--memory", "1GiB"]
    result = host.share("create", "a", *arguments, "--usage-dir", str(usage)).done()
    # A page, and for each of 1024 processes an id, a start time and the bytes on two GPUs.
    size = 4096 + 1024 * (16 + 2 * 8)
    assert f"{usage}/share-a 666 {size}" in result.out
    text = radeons.spec_file.read_text()
    assert f'hostPath: "{usage}/share-a"' in text
    assert '"HIP_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/usage"' in text


def test_a_full_usage_filesystem_is_an_error(radeons: Host) -> None:
    usage = radeons.folder / "usage"
    usage.mkdir()
    host = in_a_namespace(radeons, TINY, usage)
    host.share(*HALF, "--usage-dir", str(usage)).failed(
        f"{usage}/share-a", "No space left on device"
    )
    assert not radeons.ledger_file.exists()
    assert not radeons.spec_file.exists()


@pytest.mark.parametrize("name", ["ledger.json", "x.yaml", "shares/share-a.conf"])
def test_a_copy_never_lands_among_the_state(radeons: Host, name: str) -> None:
    radeons.share(*HALF).done()
    before = snapshot(radeons.folder)
    target = radeons.state_dir / name
    for command in (["generate", "--output"], ["hooks-d", "--output"], ["topology", "--svg"]):
        radeons.run(*command, target).failed(f"{target} lies in {radeons.state_dir}")
    assert snapshot(radeons.folder) == before


def test_a_spec_of_another_kind_is_not_replaced(radeons: Host) -> None:
    radeons.run("generate").done()
    other = radeons.spec_dir / "vendor.json"
    device = '{"name": "a", "containerEdits": {"env": ["A=1"]}}'
    other.write_text(f'{{"cdiVersion": "0.5.0", "kind": "vendor.com/net", "devices": [{device}]}}')
    before = snapshot(radeons.folder)
    radeons.run("generate", "--output", other).failed(f"at {other}, found one of vendor.com/net")
    assert snapshot(radeons.folder) == before


def test_files_of_others_are_left_alone(radeons: Host) -> None:
    radeons.share(*HALF).done()
    values = radeons.state_dir / "shares"
    theirs = {"thesis.odt", "a.conf", ".vimrc", "share-b.odt"}
    for name in (*theirs, "share-b.conf", "share-b.args", ".share-c.conf.new", "0-1of2.conf"):
        (values / name).touch()
    radeons.run("generate").done()
    assert {path.name for path in values.iterdir()} == theirs | {"share-a.conf", "share-a.args"}


def test_files_of_others_beside_usage_regions_are_left_alone(radeons: Host) -> None:
    usage = radeons.folder / "usage"
    usage.mkdir()
    script = (
        'mount -t tmpfs -o size=1m none "$0" && cd "$0" && touch thesis.odt share-b .share-c.new '
        '&& "$@"; ls -A "$0"'
    )
    host = in_a_namespace(radeons, script, usage)
    result = host.share(*HALF, "--usage-dir", str(usage)).done()
    assert result.out.split()[-2:] == ["share-a", "thesis.odt"]
