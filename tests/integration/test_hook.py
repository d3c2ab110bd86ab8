"""What the hook refuses, by real runtimes, and what their user then sees.

The share is the one of `node`: CUs 0 to 71 and 48 GiB of GPU 0, in atoms of 8 CUs.
"""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pytest

from tests.integration.machine import Machine
from tests.integration.product import hook_log
from tests.integration.record import RECORDER, Recorded
from tests.integration.runtimes import BARE, ENGINES

OTHER_GPU = r"expected no AMD GPU beyond share share-alice in \S+/config\.json, found "


def test_a_container_without_a_share_is_untouched(node: Machine) -> None:
    before = hook_log(node.sandbox)
    assert node.run("0", "2", image=node.static).status == 0
    assert hook_log(node.sandbox) == before


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        pytest.param(
            {"nodes": ["/dev/dri/renderD150"]},
            OTHER_GPU + "the device '/dev/dri/renderD150' in linux.devices",
            id="another render node",
        ),
        pytest.param(
            {"binds": {"/dev/dri": "/dev/dri"}},
            OTHER_GPU + "the mount of '/dev/dri'",
            id="a mounted dev dri",
        ),
        pytest.param(
            {"environment": {"HSA_CU_MASK_SKIP_INIT": "1"}},
            r"expected no HSA_CU_MASK_SKIP_INIT in \S+/config\.json, found "
            "HSA_CU_MASK_SKIP_INIT='1', which lifts the CU mask",
            id="a skipped mask",
        ),
    ],
)
def test_what_leads_beyond_the_share_is_refused(
    node: Machine, extra: Mapping[str, Any], reason: str
) -> None:
    node.assert_refused(node.run("share-alice", **extra), reason)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        pytest.param("2", OTHER_GPU + "the device '/dev/dri/card20'", id="a whole GPU"),
        pytest.param(
            "2-1of2",
            r"expected ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b in \S+/config\.json, "
            "found 'GPU-3c7ae05d91f4b268'",
            id="a second share",
        ),
    ],
)
def test_a_second_device_beside_the_share_is_refused(
    node: Machine, other: str, reason: str
) -> None:
    node.assert_refused(node.run("share-alice", other), reason)


def test_an_image_that_does_not_load_the_library_is_refused(node: Machine) -> None:
    reason = (
        "expected '/bin/sh' as a dynamic program that loads LD_AUDIT, "
        "found a static program at '/bin/busybox'"
    )
    node.assert_refused(node.run("share-alice", image=node.static), reason)


@pytest.mark.parametrize("machine", ENGINES, ids=attrgetter("name"), indirect=True)
def test_a_privileged_container_is_refused(node: Machine) -> None:
    outcome = node.run("share-alice", privileged=True)
    node.assert_refused(outcome, OTHER_GPU + "the device '/dev/dri/card0' in linux.devices")


@pytest.mark.parametrize("machine", ENGINES, ids=attrgetter("name"), indirect=True)
def test_a_user_cannot_widen_the_share_by_environment(node: Machine) -> None:
    wish = {
        "ROCR_VISIBLE_DEVICES": "0,1,2",
        "HSA_CU_MASK": "0:0-303",
        "HIP_DEVICE_MEMORY_LIMIT_0": "200g",
        "LD_AUDIT": "",
    }
    outcome = node.run("share-alice", environment=wish)
    assert outcome.status == 0
    for line in (
        "ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b",
        "HSA_CU_MASK=0:0-71",
        "HIP_DEVICE_MEMORY_LIMIT_0=51539607552",
        "LD_AUDIT=/usr/local/vgpu/libamvgpu.so",
    ):
        assert f"environment {line}\n" in outcome.stdout
    assert outcome.stdout.count("environment HSA_CU_MASK=") == 1


@pytest.mark.parametrize("machine", BARE, ids=attrgetter("name"), indirect=True)
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ROCR_VISIBLE_DEVICES", "0", "=GPU-8e1bb56457addd1b"),
        ("HIP_VISIBLE_DEVICES", "1", " within 0 to 0"),
        ("HSA_CU_MASK", "0:0-303", " within 0:0-71"),
        ("HSA_CU_MASK", "0:0-8", " within 0:0-71"),
        ("HSA_CU_MASK", "1:0-71", " within 0:0-71"),
        ("HIP_DEVICE_MEMORY_LIMIT_0", "51539607553", " from 1 to 51539607552 bytes"),
        ("LD_AUDIT", "/tmp/other.so", " with /usr/local/vgpu/libamvgpu.so"),
    ],
)
def test_an_environment_beyond_the_share_is_refused(
    node: Machine, name: str, value: str, expected: str
) -> None:
    """As when a runtime, or who writes its configuration, applies CDI before the user's wishes."""
    reason = rf"expected {name}{expected} in \S+/config\.json, found '{value}'"
    node.assert_refused(node.run("share-alice", environment={name: value}), reason)


def test_the_hook_also_decides_at_create_runtime(recorded: Recorded) -> None:
    hooks = recorded.configuration["hooks"]
    assert [hook["path"] for hook in hooks["createRuntime"]] == [RECORDER]
    assert RECORDER not in [hook["path"] for hook in hooks.get("prestart", [])]
    outcome = recorded.machine.run("share-alice", nodes=["/dev/dri/renderD150"])
    recorded.machine.assert_refused(outcome, OTHER_GPU + "the device '/dev/dri/renderD150'")
