"""Shares in containers that a user starts without root: podman as an unprivileged user.

His containers have no cgroup of their own that he could cap: the library holds them, or the hook
refuses.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cdi.node import sample
from tests import need
from tests.integration import product, rootless
from tests.integration.conftest import NODES
from tests.integration.container import Container, Start
from tests.integration.image import Image
from tests.integration.product import amd_cdi
from tests.integration.rootless import GROUP, Tenant, tenant
from tests.integration.sandbox import Outcome, Sandbox, sandbox

RUNC = "runc"
# Version 1.8.1 fails on a hybrid hierarchy: it has none here.
CRUN = "crun"

# Opening a node without a driver gives ENXIO to who may, and EACCES to who may not.
_LOOK = """
for node in kfd dri/renderD129; do
    { true </dev/$node; } 2>&1
done
while read -r line; do case $line in *libamvgpu*) echo loaded; break;; esac; done </proc/self/maps
{ true >/usr/local/vgpu/usage; } 2>/dev/null && echo counts
"""
_MAY = "No such device or address"
_MAY_NOT = "Permission denied"

# Arguments: the root of the sample node, then the command that sees its /sys.
_WITH_SYS = """
mount --rbind "$1/sys" /sys
shift
exec "$@"
"""


@pytest.fixture(scope="module")
def user(scratch: Path, library: Path, dynamic: Image, static: Image) -> Iterator[Tenant]:
    need.program(RUNC)
    need.program(CRUN)
    folder = scratch / "rootless"
    folder.mkdir()
    with sandbox(folder, "v1", NODES) as made:
        product.install(made, library)
        request = ("--gpu=0", "--cores=25", "--memory=48GiB", "--sample=mixed")
        amd_cdi(made, "share", "create", "a", *request)
        yield tenant(made, [dynamic, static])


def look(
    user: Tenant, image: Image, runtime: str, *options: str, device: str = "share-a"
) -> Outcome:
    command = ("/bin/sh", "-c", _LOOK)
    container = Container(image, cdi=[f"amd.com/gpu={device}"], command=command)
    return user.podman(runtime, container, *options)


@pytest.mark.parametrize(
    ("runtime", "options", "node"),
    [
        pytest.param(CRUN, ["--group-add=keep-groups"], _MAY, id="crun keeps groups"),
        pytest.param(CRUN, [], _MAY_NOT, id="crun without"),
        pytest.param(RUNC, ["--group-add=keep-groups"], _MAY_NOT, id="runc cannot keep groups"),
        pytest.param(RUNC, [], _MAY_NOT, id="runc without"),
    ],
)
def test_a_share_is_held_by_the_library(
    user: Tenant, dynamic: Image, runtime: str, options: Sequence[str], node: str
) -> None:
    outcome = look(user, dynamic, runtime, *options)
    assert (outcome.status, outcome.stderr) == (0, "")
    lines = outcome.stdout.splitlines()
    assert [line.rpartition(": ")[2] for line in lines[:2]] == [node, node]
    assert lines[2:] == ["loaded", "counts"]


def test_a_whole_gpu_takes_the_group_alone(user: Tenant, static: Image) -> None:
    outcome = look(user, static, CRUN, "--group-add=keep-groups", device="0")
    assert outcome.stdout.count(_MAY) == 2


@pytest.mark.parametrize("runtime", [RUNC, CRUN])
def test_an_image_that_does_not_load_the_library_is_refused(
    user: Tenant, static: Image, runtime: str
) -> None:
    outcome = look(user, static, runtime)
    assert (outcome.status, outcome.stdout) == (126, "")
    reason = "expected '/bin/sh' as a dynamic program that loads LD_AUDIT, found a static program"
    assert (reason in outcome.stderr) is (runtime == RUNC)


def test_a_share_that_only_the_kernel_may_hold_is_refused(user: Tenant, dynamic: Image) -> None:
    amd_cdi(user.sandbox, "generate", "--require=dmem", "--sample=mixed")
    try:
        outcome = look(user, dynamic, RUNC)
    finally:
        amd_cdi(user.sandbox, "generate", "--require=any", "--sample=mixed")
    assert (outcome.status, outcome.stdout) == (126, "")
    assert "share share-a: refused: expected a cgroup v2" in outcome.stderr


@dataclass(frozen=True)
class WithGpus(Sandbox):
    """A sandbox whose commands see the /sys of a sample node.

    Not for containers: a user may mount a sysfs of his own only where all of the host's shows.
    """

    sysroot: Path

    def enter(self, command: Sequence[str | Path]) -> list[str]:
        words = ["unshare", "--mount", "sh", "-c", _WITH_SYS, "sh", self.sysroot]
        return super().enter([*words, *command])


@pytest.fixture(scope="module")
def docker(user: Tenant, dynamic: Image, static: Image) -> Iterator[Start]:
    """His docker, which cannot keep a group: one render node is his own."""
    with rootless.docker(user, [dynamic, static]) as start:
        user.sandbox.must(["chown", rootless.NAME, "/dev/dri/renderD129"])
        yield start


def test_docker_gives_a_share_that_the_library_holds(docker: Start, dynamic: Image) -> None:
    command = ("/bin/sh", "-c", _LOOK)
    outcome = docker(Container(dynamic, cdi=["amd.com/gpu=share-a"], command=command))
    assert outcome.status == 0, outcome
    lines = outcome.stdout.splitlines()
    assert [line.rpartition(": ")[2] for line in lines[:2]] == [_MAY_NOT, _MAY]
    assert lines[2:] == ["loaded", "counts"]


def test_docker_refuses_what_does_not_load_the_library(docker: Start, static: Image) -> None:
    outcome = docker(Container(static, cdi=["amd.com/gpu=share-a"], command=("/bin/true",)))
    assert outcome.status == 125
    assert "found a static program at '/bin/busybox'" in outcome.stderr


def examined(user: Tenant, sysroot: Path, *, groups: bool) -> tuple[int, dict[str, Any]]:
    """How doctor ends that he runs, and the findings by what they say."""
    seen = WithGpus(user.sandbox.pid, user.sandbox.folder, user.sandbox.cgroup, sysroot)
    done = Tenant(seen).amd_cdi("doctor", "--json", groups=groups)
    findings = json.loads(done.stdout)["findings"]
    return done.status, {finding.pop("what"): finding for finding in findings}


def test_doctor_says_who_may_open_the_nodes(user: Tenant, tmp_path: Path) -> None:
    sample.expand("mixed", tmp_path / "mixed")
    _, found = examined(user, tmp_path / "mixed", groups=True)
    assert found["there are GPUs, and their device nodes"]["level"] == "works"
    status, found = examined(user, tmp_path / "mixed", groups=False)
    closed = found["tenant may not open the device nodes of GPUs"]
    assert (status, closed["level"]) == (2, "fails")
    assert f"/dev/kfd crw-rw---- group {GROUP}" in closed["evidence"]
    assert closed["remedy"].startswith(f"usermod -a -G {GROUP} tenant")
    assert "--group-add keep-groups" in closed["remedy"]


def test_he_configures_his_own_podman(user: Tenant) -> None:
    words = ("runtime", "configure", "--runtime=podman")
    done = user.amd_cdi(*words)
    assert (done.status, done.stdout) == (
        0,
        "up to date: /run/tenant/.config/containers/containers.conf\n",
    )
