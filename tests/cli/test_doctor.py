"""doctor on machines that lack one thing each: what it says, and how it ends.

The machines are folders with the sysfs of a sample node, and of a kernel what is read of it. The
shapes of /proc and of cgroup files are the kernel's (proc_pid_mountinfo(5), cgroup-v2.rst).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdi.node import sample
from cdi.plan.options import HOOK_PATH, LIBRARY_PATH
from tests.captures import change
from tests.cli.host import Host, snapshot

CGROUP2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
CGROUP1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
GPUS = ("0000:03:00.0", "0000:43:00.0")
NODES = ("kfd", "dri/card0", "dri/card1", "dri/renderD128", "dri/renderD129")


class Sick(Host):
    """A machine with everything in its place but for a filesystem of usage regions."""

    def lay(self, name: str, text: str = "") -> Path:
        path = self.sysroot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @property
    def spec_dir(self) -> Path:
        return self.sysroot / "etc/cdi"

    @property
    def state_dir(self) -> Path:
        return self.sysroot / "var/lib/amd-cdi"

    @property
    def hook(self) -> Path:
        return self.sysroot / HOOK_PATH.lstrip("/")

    @property
    def library(self) -> Path:
        return self.sysroot / LIBRARY_PATH.lstrip("/")

    @property
    def cgroup(self) -> Path:
        return self.sysroot / "sys/fs/cgroup"

    def found(self, *words: str, status: int = 1) -> dict[str, Any]:
        """The findings of doctor, by what they say; it must end with this status."""
        done = self.run("doctor", "--json", *words)
        assert done.status == status, done
        verdict = ("works", "less", "fails")[status]
        assert done.json["verdict"] == verdict
        return {finding.pop("what"): finding for finding in done.json["findings"]}


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine")
    host = Sick(folder / "root", folder)
    sample.expand("rx7900xtx", host.sysroot)
    host.lay("proc/self/mountinfo", CGROUP2)
    host.lay("proc/sys/kernel/osrelease", "7.3.0\n")
    host.lay("sys/fs/cgroup/cgroup.controllers", "cpu memory dmem\n")
    host.lay("sys/fs/cgroup/cgroup.subtree_control", "cpu dmem\n")
    lines = "".join(f"drm/{pci}/vram 25753026560\n" for pci in GPUS)
    host.lay("sys/fs/cgroup/dmem.capacity", lines)
    for name in NODES:
        host.lay(f"dev/{name}")
    host.lay("usr/bin/python3")
    host.lay(str(host.hook.relative_to(host.sysroot)), "#!/usr/bin/python3 -IS\n").chmod(0o755)
    host.library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(os.path.realpath("/bin/true"), host.library)
    host.generate().done()
    host.share("create", "a", "--gpu", "0", "--cores", "25", "--memory", "4GiB").done()
    return host.sysroot


@pytest.fixture
def node(laid: Path, tmp_path: Path) -> Sick:
    return Sick(shutil.copytree(laid, tmp_path / "root", symlinks=True), tmp_path)


def of(found: dict[str, Any], level: str) -> list[str]:
    return [what for what, finding in found.items() if finding["level"] == level]


def test_a_machine_that_lacks_but_one_thing(node: Sick) -> None:
    before = snapshot(node.folder)
    found = node.found()
    assert of(found, "fails") == []
    assert of(found, "less") == ["usage regions have no place"]
    assert of(found, "works") == [
        "there are GPUs, and their device nodes",
        "the kernel caps memory",
        "the library is there",
        "the hook is there",
        "the spec is there",
    ]
    assert snapshot(node.folder) == before


def test_people_read_it_as_well(node: Sick) -> None:
    done = node.run("doctor")
    assert done.status == 1
    assert done.err == ""
    place = node.sysroot / "run/amd-cdi/usage"
    assert f"less: usage regions have no place ({place} is no filesystem of its own)\n" in done.out
    assert "\n    do: as root: amd-cdi install\n" in done.out
    assert done.out.endswith("\nshares are enforced on this node, with less than could be\n")


def no_dmem(node: Sick) -> None:
    node.lay("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
    (node.cgroup / "dmem.capacity").unlink()


def only_v1(node: Sick) -> None:
    node.lay("proc/self/mountinfo", CGROUP1)


def closed_ancestor(node: Sick) -> None:
    for name, text in (("subtree_control", "cpu\n"), ("procs", "77\n")):
        node.lay(f"sys/fs/cgroup/machine.slice/cgroup.{name}", text)


def no_region(node: Sick) -> None:
    node.lay("sys/fs/cgroup/dmem.capacity", f"drm/{GPUS[0]}/vram 25753026560\n")


def no_mountinfo(node: Sick) -> None:
    (node.sysroot / "proc/self/mountinfo").unlink()


def plugin_of_amd(node: Sick) -> None:
    folder = node.sysroot / "var/lib/kubelet/device-plugins"
    folder.mkdir(parents=True)
    here = Path.cwd()
    try:
        os.chdir(folder)  # a socket's path may have 107 characters
        socket.socket(socket.AF_UNIX).bind("amd.com_gpu")
    finally:
        os.chdir(here)


def amd_ctk(node: Sick) -> None:
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "amd.com/gpu",
        "devices": [{"name": "7", "containerEdits": {"deviceNodes": [{"path": "/dev/dri/card0"}]}}],
    }
    (node.spec_dir / "amd.json").write_text(json.dumps(spec))


def same_names(node: Sick) -> None:
    shutil.copy(node.spec_file, node.spec_dir / "copy.yaml")


def other_minors(node: Sick) -> None:
    text = node.spec_file.read_text()
    node.spec_file.write_text(text.replace("renderD129", "renderD131"))


def garbage(node: Sick) -> None:
    (node.spec_dir / "other.yaml").write_text("{")


def no_boot(node: Sick) -> None:
    (node.sysroot / "run/systemd/system").mkdir(parents=True)


@pytest.mark.parametrize(
    ("fault", "what", "evidence", "remedy"),
    [
        (no_dmem, "the kernel has no dmem controller", "Linux 7.3.0", "CONFIG_CGROUP_DMEM=y"),
        (only_v1, "the kernel has no cgroup v2 mounted", "at nowhere, cgroup v1 ", "6.14 or later"),
        (
            closed_ancestor,
            "the kernel cannot cap memory below /sys/fs/cgroup/machine.slice",
            "cgroup.subtree_control lacks dmem",
            "move these processes",
        ),
        (
            no_region,
            "the kernel cannot cap the memory of GPU 0000:43:00.0",
            "dmem.capacity names drm/0000:03:00.0/vram",
            "use a kernel",
        ),
        (no_mountinfo, "the kernel could not be looked at", "FileNotFoundError: ", ""),
        (plugin_of_amd, "AMD's own device plugin serves amd.com/gpu", "amd.com_gpu", "DaemonSet"),
        (amd_ctk, "others offer amd.com/gpu devices as well", "amd.json has devices", "amd-ctk's"),
        (same_names, "others offer amd.com/gpu devices as well", "use neither", "remove"),
        (other_minors, "the spec is not what it should be", "~ 1", "amd-cdi generate"),
        (garbage, "runtimes skip a spec", "other.yaml is neither YAML nor JSON", "move it away"),
        (no_boot, "nothing writes the spec anew at boot", "is not enabled", "systemctl enable"),
    ],
)
def test_what_leaves_shares_with_less(
    node: Sick, fault: Callable[[Sick], None], what: str, evidence: str, remedy: str
) -> None:
    fault(node)
    found = node.found()
    assert what in of(found, "less")
    assert evidence in found[what]["evidence"]
    assert remedy in found[what]["remedy"]


def no_driver(node: Sick) -> None:
    shutil.rmtree(node.sysroot / "sys/bus/pci/drivers/amdgpu")
    shutil.rmtree(node.sysroot / "sys/module/amdgpu", ignore_errors=True)


def no_kfd(node: Sick) -> None:
    (node.sysroot / "dev/kfd").unlink()


def no_hook(node: Sick) -> None:
    node.hook.unlink()


def no_mode(node: Sick) -> None:
    node.hook.chmod(0o644)


def no_interpreter(node: Sick) -> None:
    (node.sysroot / "usr/bin/python3").unlink()


def no_library(node: Sick) -> None:
    node.library.unlink()


def no_library_that_loads(node: Sick) -> None:
    no_dmem(node)
    node.library.write_text("#!/bin/sh\n")


def foreign_library(node: Sick) -> None:
    no_dmem(node)
    data = bytearray(node.library.read_bytes())
    data[18:20] = (22).to_bytes(2, "little")  # EM_S390 of elf(5)
    node.library.write_bytes(data)


def private_library(node: Sick) -> None:
    no_dmem(node)
    node.library.chmod(0o700)


def no_spec(node: Sick) -> None:
    shutil.rmtree(node.spec_dir)


def bad_spec(node: Sick) -> None:
    text = node.spec_file.read_text()
    node.spec_file.write_text(text.replace('permissions: "rw"', 'permissions: "rx"', 1))


def bad_ledger(node: Sick) -> None:
    node.ledger_file.write_text("{")


def dmem_required(node: Sick) -> None:
    node.generate("--require", "dmem").done()
    no_dmem(node)


@pytest.mark.parametrize(
    ("fault", "what", "evidence"),
    [
        (no_driver, "there is no GPU to share", "expected the amdgpu driver"),
        (no_kfd, "device nodes of GPUs are missing", "no /dev/kfd"),
        (no_hook, "the hook cannot be run", f"no file at {HOOK_PATH}"),
        (no_mode, "the hook cannot be run", "amd-oci-hook is not executable"),
        (no_interpreter, "the hook cannot be run", "needs /usr/bin/python3, which is missing"),
        (no_library, "the library cannot be loaded", "no file at"),
        (no_library_that_loads, "the library cannot be loaded", "is no ELF file"),
        (foreign_library, "the library cannot be loaded", "is for machine 22"),
        (private_library, "the library cannot be loaded", "has mode 0700"),
        (no_library_that_loads, "the kernel has no dmem controller", "Linux 7.3.0"),
        (no_spec, "there is no spec of this node", "no CDI spec at"),
        (bad_spec, "the spec is not valid", "permissions"),
        (bad_ledger, "the ledger cannot be read", "is damaged"),
        (dmem_required, "the kernel has no dmem controller", "cpu memory"),
    ],
)
def test_what_keeps_shares_from_working(
    node: Sick, fault: Callable[[Sick], None], what: str, evidence: str
) -> None:
    fault(node)
    found = node.found(status=2)
    assert what in of(found, "fails")
    assert evidence in found[what]["evidence"]
    assert found[what]["consequence"]
    assert found[what]["remedy"]


@pytest.mark.parametrize("fault", [no_dmem, only_v1])
def test_without_dmem_and_without_need_of_it_all_is_well(
    node: Sick, fault: Callable[[Sick], None]
) -> None:
    node.generate("--require", "library").done()
    fault(node)
    found = node.found()
    assert of(found, "less") == ["usage regions have no place"]


def test_where_dmem_is_switched_on_later_the_place_is_named(node: Sick) -> None:
    node.lay("sys/fs/cgroup/system.slice/cgroup.subtree_control", "cpu\n")
    node.lay("sys/fs/cgroup/system.slice/cgroup.procs", "")
    assert (
        "the hook switches it on in /sys/fs/cgroup/system.slice"
        in node.found()["the kernel caps memory"]["evidence"]
    )


def test_memory_that_dmem_does_not_charge(node: Sick) -> None:
    # An APU has a region in dmem.capacity too, that of its carve-out.
    kfd = node.sysroot / "sys/devices/virtual/kfd/kfd/topology/nodes"
    change(kfd / "2/properties", gfx_target_version=110501)
    change(kfd / "2/mem_banks/0/properties", size_in_bytes=96 << 30)
    found = node.found()
    uncharged = found["the kernel cannot cap the memory of GPU 0000:43:00.0"]
    assert uncharged["level"] == "less"
    assert "shared with the host" in uncharged["evidence"]
    assert "the library alone" in uncharged["consequence"]
    assert "the kernel caps memory" in of(found, "works")
    change(kfd / "1/properties", gfx_target_version=110501)
    change(kfd / "1/mem_banks/0/properties", size_in_bytes=96 << 30)
    assert "the kernel caps memory" not in node.found()


def test_an_enabled_unit_is_seen(node: Sick) -> None:
    no_boot(node)
    link = node.sysroot / "etc/systemd/system/multi-user.target.wants/amd-cdi-refresh.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/etc/systemd/system/amd-cdi-refresh.service")
    assert "the spec is written anew at boot" in of(node.found(), "works")


def test_an_image_that_nobody_has(node: Sick) -> None:
    node.run("doctor", "--image", "no-such/image").failed("expected a folder or an image")
