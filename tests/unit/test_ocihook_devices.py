"""Which devices, mounts and cgroup rules let a container reach a GPU beyond its share."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from ocihook import devices
from ocihook.arguments import parse
from ocihook.bundle import Container
from ocihook.refusal import Refusal
from tests import need
from tests.ocihook_scene import Scene, bind, device, rule, write

if TYPE_CHECKING:
    from pathlib import Path

DENY = {"allow": False, "access": "rwm"}
DEFAULTS = [DENY, {"allow": True, "type": "c", "access": "m"}, rule(1, 3), rule(226, 128)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def judge(scene: Scene) -> str:
    """Return the refusal of the scene's container, empty if it may start."""
    share = parse(scene.arguments()).share
    assert share is not None
    try:
        container = Container(scene.config, str(scene.bundle))
        devices.check(container, share, str(scene.sysroot))
    except Refusal as refusal:
        return str(refusal)
    return ""


def test_share_as_generated(scene: Scene) -> None:
    assert judge(scene) == ""


@pytest.mark.parametrize("minor", [129, 2, 0])
def test_other_node_in_devices(scene: Scene, minor: int) -> None:
    scene.config["linux"]["devices"].append(device("/dev/dri/other", 226, minor))
    assert "the device '/dev/dri/other' in linux.devices" in judge(scene)


def test_other_makers_node_is_allowed(scene: Scene) -> None:
    scene.config["linux"]["devices"].append(device("/dev/dri/renderD129", 226, 129))
    write(scene.sysroot / "sys/dev/char/226:129/device/vendor", "0x8086\n")
    assert judge(scene) == ""
    write(scene.sysroot / "sys/dev/char/226:129/device/vendor", "0x1002\n")
    assert "renderD129" in judge(scene)


def test_devices_of_other_kinds_are_allowed(scene: Scene) -> None:
    scene.config["linux"]["devices"].append(device("/dev/fuse", 10, 229))
    assert judge(scene) == ""


@pytest.mark.parametrize("source", ["/dev", "/dev/", "/", "/dev/../dev/dri", "/dev/dri"])
def test_mounts_that_bring_all_nodes(scene: Scene, source: str) -> None:
    scene.config["mounts"].append(bind("/x", source, "rw"))
    assert f"the mount of {source!r}" in judge(scene)


def test_link_to_dev_counts_as_dev(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "innocent").symlink_to("/dev")
    scene.config["mounts"].append(bind("/x", tmp_path / "innocent"))
    assert "innocent" in judge(scene)


def test_bind_mounted_node(scene: Scene, tmp_path: Path) -> None:
    need.superuser("making a device node")
    for minor, refused in ((128, False), (129, True)):
        node = tmp_path / f"node{minor}"
        os.mknod(node, 0o600 | stat.S_IFCHR, os.makedev(226, minor))
        scene.config["mounts"].append(bind(f"/dev/dri/x{minor}", node))
        assert bool(judge(scene)) is refused


def test_ordinary_mounts_are_allowed(scene: Scene, tmp_path: Path) -> None:
    for source in (tmp_path, "/dev/null", "/dev/shm", "/nowhere/at/all"):
        scene.config["mounts"].append(bind("/x", source, "rw"))
    assert judge(scene) == ""


def test_devtmpfs_brings_all_nodes(scene: Scene) -> None:
    scene.config["mounts"].append({"destination": "/d", "type": "devtmpfs", "source": "devtmpfs"})
    assert "a devtmpfs at '/d'" in judge(scene)


@pytest.mark.parametrize(
    "rules",
    [
        [{"allow": True, "access": "rwm"}],  # podman and docker --privileged
        [{"allow": True, "type": "a", "major": -1, "minor": -1, "access": "rwm"}],
        [*DEFAULTS, rule(226, None)],
        [*DEFAULTS, rule(None, None)],
        [*DEFAULTS, rule(None, 129)],
        [*DEFAULTS, rule(226, 129, "r")],
        [*DEFAULTS, rule(226, 129, "w")],
        [*DEFAULTS, {"allow": True, "type": "c", "major": 226, "minor": -1}],
        [*DEFAULTS, rule(226, None), {"allow": False, "type": "c", "major": 226, "minor": 129}],
        [*DEFAULTS, rule(226, None), {"allow": False, "access": "w"}],
    ],
)
def test_rules_that_open_other_nodes(scene: Scene, rules: list) -> None:
    scene.config["linux"]["resources"]["devices"] = rules
    assert "in linux.resources.devices" in judge(scene)


@pytest.mark.parametrize(
    "rules",
    [
        DEFAULTS,
        [{"allow": True, "access": "rwm"}, *DEFAULTS],  # the denial comes last
        [*DEFAULTS, rule(226, 129, "m")],  # making a node is not opening it
        [*DEFAULTS, {"allow": True, "type": "b", "access": "rwm"}],
        [*DEFAULTS, rule(195, None)],
    ],
)
def test_rules_that_keep_to_the_share(scene: Scene, rules: list) -> None:
    scene.config["linux"]["resources"]["devices"] = rules
    assert judge(scene) == ""


def test_no_rules_and_mknod(scene: Scene) -> None:
    scene.config["linux"]["resources"] = {}
    assert "CAP_MKNOD" in judge(scene)
    scene.config["process"]["capabilities"]["bounding"] = ["CAP_CHOWN"]
    assert judge(scene) == ""


@pytest.mark.parametrize(
    ("uid_map", "allowed"),
    [
        ("         0          0 4294967295\n", False),
        ("         0       4242          1\n         1     200000      65536\n", True),
        ("         0          0      65536\n", True),
        (None, False),
    ],
)
def test_mknod_makes_devices_in_the_first_user_namespace_alone(
    scene: Scene, uid_map: str | None, allowed: bool
) -> None:
    """By user_namespaces(7), which also says what its uid_map is."""
    scene.config["linux"]["resources"] = {}
    if uid_map is not None:
        write(scene.sysroot / "proc/self/uid_map", uid_map)
    assert (judge(scene) == "") is allowed


def test_rule_for_other_makers_node(scene: Scene) -> None:
    scene.config["linux"]["resources"]["devices"] = [*DEFAULTS, rule(226, 129)]
    assert "226:129" in judge(scene)
    write(scene.sysroot / "sys/dev/char/226:129/device/vendor", "0x8086\n")
    assert judge(scene) == ""
    scene.config["linux"]["resources"]["devices"].append(rule(226, 130))
    assert "226:130" in judge(scene)
