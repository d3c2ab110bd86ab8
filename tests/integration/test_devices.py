"""Containers that real runtimes start with the devices that `amd-cdi` wrote.

The node is the sample `mixed`: GPU 0 is an MI300X (card1, renderD129), GPU 1 one in CPX (card9 to
card16), GPU 2 a Radeon RX 9070 XT (card20, renderD150), GPU 3 an APU (card22, renderD152); card0
and renderD128 are another vendor's.
"""

import json
from collections.abc import Collection

import pytest

from tests.integration import probe
from tests.integration.machine import Machine
from tests.integration.sandbox import node_number

EVERY_RENDER_NODE = tuple(f"226:{minor}" for minor in (128, 129, *range(137, 145), 150, 152))

HOOK = """#!/bin/sh
{ echo "$@"; env; cat; } >FOLDER/hook.log
"""

# TODO hand-written
SPEC = r"""
cdiVersion: "0.5.0"
kind: amd.com/gpu
containerEdits:
  deviceNodes: [{path: /dev/kfd, permissions: rw}]
devices:
- name: "0"
  containerEdits:
    deviceNodes: [{path: /dev/dri/card1, permissions: rw}, {path: /dev/dri/renderD129, permissions: rw}]
- name: "2"
  containerEdits:
    deviceNodes: [{path: /dev/dri/card20, permissions: rw}, {path: /dev/dri/renderD150, permissions: rw}]
- name: "1:3"
  containerEdits:
    deviceNodes: [{path: /dev/dri/card12, permissions: rw}, {path: /dev/dri/renderD140, permissions: rw}]
- name: "share-alice"
  containerEdits:
    deviceNodes: [{path: /dev/dri/card1, permissions: rw}, {path: /dev/dri/renderD129, permissions: rw}]
    env:
    - ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b
    - HIP_VISIBLE_DEVICES=0
    - HSA_CU_MASK=0:0-71
    - HIP_DEVICE_MEMORY_LIMIT_0=51539607552
    - LD_AUDIT=/usr/local/vgpu/libamvgpu.so
    - HIP_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/usage
    mounts:
    - {hostPath: /usr/local/lib/amd-cdi/libamvgpu.so, containerPath: /usr/local/vgpu/libamvgpu.so, options: [ro, nosuid, nodev, bind]}
    - {hostPath: /var/lib/amd-cdi/shares/share-alice.conf, containerPath: /usr/local/vgpu/share.conf, options: [ro, nosuid, nodev, bind]}
    - {hostPath: /run/amd-cdi/usage/share-alice, containerPath: /usr/local/vgpu/usage, options: [rw, nosuid, nodev, bind]}
    hooks:
    - {hookName: prestart, path: /usr/local/lib/amd-cdi/amd-oci-hook, args: [amd-oci-hook, run, --share, share-alice], env: ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], timeout: 10}
"""


@pytest.fixture(scope="session")
def node(machine: Machine) -> Machine:
    """The machine after `amd-cdi` wrote its spec, with stand-ins for the hook and the library."""
    inside = machine.sandbox.path
    for folder in (
        "/usr/local/lib/amd-cdi",
        "/run/amd-cdi/usage",
        "/var/lib/amd-cdi/shares",
    ):
        inside(folder).mkdir(parents=True)
    hook = inside("/usr/local/lib/amd-cdi/amd-oci-hook")
    hook.write_text(HOOK.replace("FOLDER", str(machine.sandbox.folder)))
    hook.chmod(0o755)
    inside("/usr/local/lib/amd-cdi/libamvgpu.so").touch()
    inside("/var/lib/amd-cdi/shares/share-alice.conf").touch()
    inside("/run/amd-cdi/usage/share-alice").touch()
    inside("/etc/cdi/amd.com-gpu.yaml").write_text(SPEC)
    return machine


def granted(sight: probe.Sight) -> set[str]:
    """The GPU nodes of a container, each checked to be the right device, and to open."""
    for name, seen in sight.gpu_nodes().items():
        assert (seen.major, seen.minor) == node_number(name), name
        assert seen.answer in probe.GRANTED, name
    return set(sight.gpu_nodes())


def all_but(*minors: int) -> tuple[str, ...]:
    return tuple(number for number in EVERY_RENDER_NODE if int(number.split(":")[1]) not in minors)


def test_a_container_without_a_device_has_no_gpu(node: Machine) -> None:
    sight = node.look(strangers=EVERY_RENDER_NODE)
    assert granted(sight) == set()
    assert set(sight.strangers.values()) == {probe.REFUSED}


@pytest.mark.parametrize(
    ("devices", "cards", "renders"),
    [
        pytest.param(["0"], [1], [129], id="a whole GPU"),
        pytest.param(["0", "2"], [1, 20], [129, 150], id="two whole GPUs"),
        pytest.param(["1:3"], [12], [140], id="a partition"),
    ],
)
def test_a_gpu_comes_with_its_nodes_alone(
    node: Machine, devices: Collection[str], cards: Collection[int], renders: Collection[int]
) -> None:
    without = node.look()
    sight = node.look(*devices, strangers=all_but(*renders))
    nodes = {"kfd", *(f"dri/card{n}" for n in cards), *(f"dri/renderD{n}" for n in renders)}
    assert granted(sight) == nodes
    assert set(sight.strangers.values()) == {probe.REFUSED}
    assert sight.environment.keys() == without.environment.keys()
    assert sight.mounts.keys() == without.mounts.keys()


def test_a_share_comes_with_its_limits(node: Machine) -> None:
    without = node.look()
    sight = node.look("share-alice", strangers=all_but(129))
    assert granted(sight) == {"kfd", "dri/card1", "dri/renderD129"}
    assert set(sight.strangers.values()) == {probe.REFUSED}
    assert added_environment(sight, without) == {
        "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
        "HIP_VISIBLE_DEVICES": "0",
        "HSA_CU_MASK": "0:0-71",
        "HIP_DEVICE_MEMORY_LIMIT_0": str(48 * 2**30),
        "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
        "HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage",
    }
    assert {path: "ro" in options for path, options in added_mounts(sight, without).items()} == {
        "/usr/local/vgpu/libamvgpu.so": True,
        "/usr/local/vgpu/share.conf": True,
        "/usr/local/vgpu/usage": False,
    }


def added_environment(sight: probe.Sight, without: probe.Sight) -> dict[str, str]:
    return {
        name: value for name, value in sight.environment.items() if name not in without.environment
    }


def added_mounts(sight: probe.Sight, without: probe.Sight) -> dict[str, frozenset[str]]:
    return {path: options for path, options in sight.mounts.items() if path not in without.mounts}


def test_the_hook_of_a_share_runs_before_it(node: Machine) -> None:
    node.look("share-alice")
    print((node.sandbox.folder / "hook.log").read_text())
