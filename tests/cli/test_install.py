"""What `amd-cdi install` gives a node, and that `amd-cdi uninstall` takes all of it again.

The node is the tree of a sample node; the files of a version are stand-ins with its name in them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import need
from tests.cli.conftest import MakeHost
from tests.cli.host import Host, Result, snapshot

HOOK, LIBRARY = "amd-oci-hook", "libamvgpu.so"
VERSION = "0.1.0"

# A release of another version, which may be killed before so many changes of the file system.
RELEASE = """
import os, signal, sys
version, left = sys.argv.pop(1), int(sys.argv.pop(1))
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.chmod", "os.link"}
def audit(event, arguments):
    global left
    if event in EVENTS:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
import cdi.version
cdi.version.__version__ = version
from cdi.__main__ import main
main()
"""


@dataclass(frozen=True)
class Node:
    host: Host

    @property
    def root(self) -> Path:
        return self.host.sysroot

    @property
    def prefix(self) -> Path:
        return self.root / "opt/amd-cdi"

    @property
    def specs(self) -> Path:
        return self.root / "etc/cdi"

    @property
    def state(self) -> Path:
        return self.root / "var/lib/amd-cdi"

    @property
    def environment(self) -> dict[str, str]:
        """Nothing but the sysroot is named: all the rest is below it."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AMD_CDI_")}
        return kept | {"AMD_CDI_SYSROOT": str(self.root)}

    def payload(self, version: str) -> Path:
        folder = self.host.folder / f"payload-{version}"
        folder.mkdir(exist_ok=True)
        for name in (HOOK, LIBRARY):
            (folder / name).write_text(f"{name} {version}\n")
        return folder

    def run(self, *arguments: str | Path, version: str = VERSION, death: int = 0) -> Result:
        command = [sys.executable, "-c", RELEASE, version, str(death), *map(str, arguments)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def install(self, *arguments: str | Path, version: str = VERSION, death: int = 0) -> Result:
        source = f"--from={self.payload(version)}"
        return self.run("install", source, *arguments, version=version, death=death)

    def counts(self) -> str:
        """The version that is found by who follows the link; both files have to be of one."""
        texts = [(self.prefix / "current" / name).read_text() for name in (HOOK, LIBRARY)]
        versions = {text.split()[1] for text in texts}
        assert len(versions) == 1
        return versions.pop()

    def files(self) -> set[str]:
        """Everything that is not the sample's own, without folders that any system has."""
        found = {str(path.relative_to(self.root)) for path in self.root.rglob("*")}
        return {name for name in found if not name.startswith(("sys", "dev", "usr"))}


@pytest.fixture
def node(own: MakeHost) -> Node:
    return Node(own("rx7900xtx"))


@pytest.fixture
def systemd(node: Node) -> Node:
    """A tree that systemd will run."""
    (node.root / "usr/lib/systemd").mkdir(parents=True)
    (node.root / "usr/lib/systemd/systemd").touch()
    return node


def test_lays_what_shares_need(systemd: Node) -> None:
    systemd.install().done()
    assert systemd.counts() == VERSION
    assert (systemd.prefix / "current").readlink() == Path(VERSION)
    assert {path.name for path in systemd.prefix.iterdir()} == {"current", VERSION}
    for name in (HOOK, LIBRARY):
        mode = (systemd.prefix / VERSION / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o755
    share = ("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB")
    made = systemd.run(*share).done()
    assert "is not at" not in made.err
    spec = (systemd.specs / "amd.com-gpu.yaml").read_text()
    assert "path: /opt/amd-cdi/current/amd-oci-hook\n" in spec.replace('"', "")
    assert "hostPath: /opt/amd-cdi/current/libamvgpu.so\n" in spec.replace('"', "")


def test_again_changes_nothing(systemd: Node) -> None:
    systemd.install().done()
    before = snapshot(systemd.root)
    again = systemd.install("--json").done()
    assert [step["action"] for step in again.json["steps"]] == ["refresh"]
    after = snapshot(systemd.root)
    assert before == after


def test_dry_run_writes_nothing_and_says_all(systemd: Node) -> None:
    before = snapshot(systemd.root)
    planned = systemd.install("--dry-run", "--json").done().json
    assert planned["dry_run"] is True
    assert snapshot(systemd.root) == before
    done = systemd.install("--json").done().json
    assert done["steps"] == planned["steps"]
    before = snapshot(systemd.root)
    planned = systemd.run("uninstall", "--dry-run", "--json").done().json
    assert snapshot(systemd.root) == before
    assert systemd.run("uninstall", "--json").done().json["steps"] == planned["steps"]


def test_units_are_enabled_and_what_systemd_understands(systemd: Node) -> None:
    systemd.install().done()
    folder = systemd.root / "etc/systemd/system"
    # The name is what `systemd-escape --path --suffix=mount /run/amd-cdi/usage` prints.
    names = {"amd-cdi-refresh.service", "run-amd\\x2dcdi-usage.mount"}
    wants = folder / "multi-user.target.wants"
    assert {path.name for path in wants.iterdir()} == names
    assert all(path.resolve() == folder / path.name for path in wants.iterdir())
    service = (folder / "amd-cdi-refresh.service").read_text()
    before = next(line for line in service.splitlines() if line.startswith("Before="))
    for runtime in ("containerd", "crio", "docker", "kubelet"):
        assert f"{runtime}.service" in before


def test_systemd_finds_no_fault_in_the_units(systemd: Node) -> None:
    analyze = need.program("systemd-analyze")
    systemd.install().done()
    folder = systemd.root / "etc/systemd/system"
    service = folder / "amd-cdi-refresh.service"
    # Where nothing is installed system-wide the command that the unit names is not there.
    service.write_text(service.read_text().replace('"amd-cdi"', '"/bin/true"'))
    units = [service, folder / "run-amd\\x2dcdi-usage.mount"]
    done = subprocess.run([analyze, "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_systemd_there_are_no_units(node: Node) -> None:
    result = node.install().done()
    assert "no systemd is there" in result.err
    assert not (node.root / "etc/systemd").exists()


def test_without_a_gpu_the_specs_wait(systemd: Node) -> None:
    shutil.rmtree(systemd.root / "sys")
    (systemd.root / "sys").mkdir()
    result = systemd.install().done()
    assert "no GPU can be used yet" in result.err
    assert systemd.counts() == VERSION
    assert not list(systemd.specs.glob("*.yaml"))


def test_without_the_files_nothing_is_done(systemd: Node) -> None:
    source = systemd.payload(VERSION)
    (source / HOOK).unlink()
    before = snapshot(systemd.root)
    result = systemd.run("install", f"--from={source}")
    result.failed(f"this amd-cdi brings no {HOOK}", str(source), "--from")
    assert snapshot(systemd.root) == before


# Another place


def test_shares_are_given_what_is_below_the_prefix(systemd: Node) -> None:
    systemd.install("--prefix=/var/opt/amd").done()
    systemd.run("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB").done()
    spec = (systemd.specs / "amd.com-gpu.yaml").read_text()
    assert "/var/opt/amd/current/amd-oci-hook" in spec
    assert "/opt/amd-cdi" not in spec
    # Also by who runs plain commands later, and knows of no prefix.
    systemd.run("generate", "--split=2").done()
    assert "/opt/amd-cdi" not in (systemd.specs / "amd.com-gpu.yaml").read_text()
    systemd.run("share", "remove", "a").done()
    systemd.install(version="0.2.0").done()
    assert (systemd.root / "var/opt/amd/current").readlink() == Path("0.2.0")
    systemd.run("uninstall").done()
    assert not (systemd.root / "var/opt/amd").exists()


def test_prefix_is_kept_where_no_gpu_is_yet(systemd: Node) -> None:
    sysfs = systemd.root / "sys"
    sysfs.rename(systemd.host.folder / "later")
    sysfs.mkdir()
    systemd.install("--prefix=/var/opt/amd").done()
    sysfs.rmdir()
    (systemd.host.folder / "later").rename(sysfs)
    systemd.run("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB").done()
    spec = (systemd.specs / "amd.com-gpu.yaml").read_text()
    assert "/var/opt/amd/current/amd-oci-hook" in spec


@pytest.mark.parametrize("prefix", ["opt", "/opt/../etc", "/opt/a\nb"])
def test_a_prefix_that_is_none_is_refused(systemd: Node, prefix: str) -> None:
    before = snapshot(systemd.root)
    systemd.install(f"--prefix={prefix}").failed("--prefix is an absolute path", status=2)
    assert snapshot(systemd.root) == before


# Upgrades


def test_upgrade_beside_a_live_share(systemd: Node) -> None:
    systemd.install().done()
    systemd.run("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB").done()
    spec = (systemd.specs / "amd.com-gpu.yaml").read_bytes()
    systemd.install(version="0.2.0").done()
    assert systemd.counts() == "0.2.0"
    # What was made from the spec before works with the new version.
    assert (systemd.specs / "amd.com-gpu.yaml").read_bytes() == spec
    assert {path.name for path in systemd.prefix.iterdir()} == {"current", "0.2.0"}


def test_a_version_stays_while_a_spec_names_it(systemd: Node) -> None:
    systemd.install().done()
    systemd.run("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB").done()
    other = systemd.specs / "own.json"
    device = {
        "name": "mine",
        "containerEdits": {
            "hooks": [{"hookName": "prestart", "path": f"/opt/amd-cdi/{VERSION}/{HOOK}"}]
        },
    }
    other.write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [device]})
    )
    systemd.install(version="0.2.0").done()
    assert systemd.counts() == "0.2.0"
    assert (systemd.prefix / VERSION / HOOK).read_text() == f"{HOOK} {VERSION}\n"
    other.unlink()
    systemd.install(version="0.2.0").done()
    assert {path.name for path in systemd.prefix.iterdir()} == {"current", "0.2.0"}


def test_back_to_the_version_before(systemd: Node) -> None:
    for version in (VERSION, "0.2.0", VERSION):
        systemd.install(version=version).done()
        assert systemd.counts() == version


def test_other_files_of_the_same_version_replace_it_at_once(systemd: Node) -> None:
    systemd.install().done()
    source = systemd.payload(VERSION)
    for name in (HOOK, LIBRARY):
        (source / name).write_text(f"{name} changed\n")
    systemd.run("install", f"--from={source}").done()
    assert systemd.counts() == "changed"
    assert len(list(systemd.prefix.iterdir())) == 2


def test_what_others_keep_below_the_prefix_stays(systemd: Node) -> None:
    (systemd.prefix / "bin").mkdir(parents=True)
    (systemd.prefix / "bin/amd-cdi").write_text("a virtual environment\n")
    systemd.install().done()
    systemd.install(version="0.2.0").done()
    systemd.run("uninstall").done()
    assert {path.name for path in systemd.prefix.iterdir()} == {"bin"}


@pytest.mark.parametrize("earlier", ["", VERSION])
def test_killed_at_any_moment_one_version_is_whole(systemd: Node, earlier: str) -> None:
    if earlier:
        systemd.install(version=earlier).done()
    copy = systemd.host.folder / "before"
    shutil.copytree(systemd.root, copy, symlinks=True)
    for step in itertools.count(1):
        died = systemd.install(version="0.2.0", death=step)
        if died.status == 0:
            break
        assert died.status == -signal.SIGKILL, died
        if earlier or (systemd.prefix / "current").is_symlink():
            assert systemd.counts() in {earlier, "0.2.0"}
        systemd.install(version="0.2.0").done()
        assert systemd.counts() == "0.2.0"
        assert {path.name for path in systemd.prefix.iterdir()} == {"current", "0.2.0"}
        shutil.rmtree(systemd.root)
        shutil.copytree(copy, systemd.root, symlinks=True)
    assert step > 8


# Removal


def test_uninstall_leaves_nothing(systemd: Node) -> None:
    folders = ("etc/systemd/system/multi-user.target.wants", "opt", "var/lib", "var/log")
    for folder in folders:
        (systemd.root / folder).mkdir(parents=True)
    before = systemd.files()
    systemd.install().done()
    systemd.run("share", "create", "a", "--gpu=0", "--cores=10", "--memory=1GiB").done()
    systemd.run("hooks-d").done()
    (systemd.root / "var/log/amd-cdi/hook.log").write_text("a line\n")
    # Of a pod, and one whose writer died.
    pod = "amd.com-gpu_pod-8e6a1c9e-3c0f-4d6b-9a55-0d3f4a1b2c3d.main.yaml"
    shutil.copy(systemd.specs / "amd.com-gpu.yaml", systemd.specs / pod)
    shutil.copy(systemd.specs / "amd.com-gpu.yaml", systemd.specs / f".{pod}.new")
    systemd.run("uninstall", "--force").done()
    assert systemd.files() == before
    assert not list((systemd.root / "usr/share/containers/oci/hooks.d").iterdir())


def test_uninstall_refuses_while_shares_live(systemd: Node) -> None:
    systemd.install().done()
    for name in ("a", "b"):
        systemd.run("share", "create", name, "--gpu=0", "--cores=10", "--memory=1GiB").done()
    before = snapshot(systemd.root)
    systemd.run("uninstall").failed("share-a, share-b", "amd-cdi share remove", "--force")
    assert snapshot(systemd.root) == before


def test_uninstall_does_not_take_a_damaged_ledger_for_an_empty_one(systemd: Node) -> None:
    systemd.install().done()
    (systemd.state / "ledger.json").write_text("{")
    systemd.run("uninstall").failed("is damaged")
    assert systemd.counts() == VERSION
    systemd.run("uninstall", "--force").done()
    assert not systemd.state.exists()


def test_uninstall_leaves_what_is_of_others(systemd: Node) -> None:
    systemd.install().done()
    others = [
        systemd.specs / "nvidia.yaml",
        systemd.state / "notes.txt",
        systemd.root / "usr/share/containers/oci/hooks.d/amd-cdi.json",
        systemd.root / "etc/systemd/system/other.service",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    systemd.run("uninstall").done()
    assert [path for path in others if path.exists()] == others


def test_uninstall_that_was_killed_is_finished_by_the_next(systemd: Node) -> None:
    systemd.install("--prefix=/var/opt/amd").done()
    copy = systemd.host.folder / "before"
    shutil.copytree(systemd.root, copy, symlinks=True)
    for step in itertools.count(1):
        died = systemd.run("uninstall", death=step)
        if died.status == 0:
            break
        assert died.status == -signal.SIGKILL, died
        systemd.run("uninstall").done()
        for place in ("var/opt/amd", "var/lib/amd-cdi", "etc/cdi", "var/log/amd-cdi"):
            assert not (systemd.root / place).exists(), (step, place)
        shutil.rmtree(systemd.root)
        shutil.copytree(copy, systemd.root, symlinks=True)
    assert step > 8


def test_nothing_to_remove_is_no_error(node: Node) -> None:
    before = snapshot(node.root)
    node.run("uninstall").done()
    assert snapshot(node.root) == before


def test_refresh_keeps_the_options(node: Node) -> None:
    node.run("generate", "--split=4", "--require=dmem").done()
    spec = node.specs / "amd.com-gpu.yaml"
    before = spec.read_bytes()
    spec.unlink()
    node.run("refresh").done()
    assert spec.read_bytes() == before
    assert b"0-1of4" in before
