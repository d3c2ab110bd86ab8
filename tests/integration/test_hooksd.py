"""The hook by podman's hooks.d: for every container, with no word of what its share is."""

from collections.abc import Iterator
from operator import attrgetter

import pytest

from tests.integration.machine import Machine
from tests.integration.product import INSTALLED, USAGE, amd_cdi, hook_log
from tests.integration.runtimes import ENGINES

pytestmark = pytest.mark.parametrize("machine", ENGINES[:2], ids=attrgetter("name"), indirect=True)

VALUES = "/var/lib/amd-cdi/shares/share-alice.conf"
NODES = ("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129")
ENVIRONMENT = {
    "ROCR_VISIBLE_DEVICES": "GPU-8e1bb56457addd1b",
    "HIP_VISIBLE_DEVICES": "0",
    "HSA_CU_MASK": "0:0-71",
    "HIP_DEVICE_MEMORY_LIMIT_0": "51539607552",
    "LD_AUDIT": "/usr/local/vgpu/libamvgpu.so",
    "HIP_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/usage",
}
BINDS = {
    VALUES: "/usr/local/vgpu/share.conf:ro",
    f"{INSTALLED}/libamvgpu.so": "/usr/local/vgpu/libamvgpu.so:ro",
    f"{USAGE}/share-alice": "/usr/local/vgpu/usage",
}


@pytest.fixture
def hooked(node: Machine) -> Iterator[Machine]:
    amd_cdi(node.sandbox, "hooks-d")
    yield node
    node.sandbox.path("/usr/share/containers/oci/hooks.d/amd-cdi.json").unlink()


def test_a_container_without_a_share_is_untouched(hooked: Machine) -> None:
    before = hook_log(hooked.sandbox)
    assert hooked.run("0", "2", image=hooked.static).status == 0
    assert hook_log(hooked.sandbox) == before


def test_a_share_by_cdi_is_checked_once(hooked: Machine) -> None:
    before = hook_log(hooked.sandbox)
    assert hooked.run("share-alice").status == 0
    assert len(hook_log(hooked.sandbox)) == len(before) + 1


def test_a_share_by_hand_starts_when_it_is_complete(hooked: Machine) -> None:
    outcome = hooked.run(nodes=NODES, environment=ENVIRONMENT, binds=BINDS)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert "share share-alice: memory held by the library" in hook_log(hooked.sandbox)[-1]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HSA_CU_MASK", "0:0-303", " within 0:0-71"),
        ("HIP_DEVICE_MEMORY_LIMIT_0", "60g", " from 1 to 51539607552 bytes"),
    ],
)
def test_a_share_by_hand_is_refused_beyond_its_limits(
    hooked: Machine, name: str, value: str, expected: str
) -> None:
    outcome = hooked.run(nodes=NODES, environment={**ENVIRONMENT, name: value}, binds=BINDS)
    hooked.assert_refused(outcome, rf"expected {name}{expected} in \S+, found '{value}'")


def test_a_part_of_a_share_is_refused(hooked: Machine) -> None:
    values = {VALUES: BINDS[VALUES]}
    hooked.assert_refused(
        hooked.run(nodes=NODES, binds=values),
        r"expected ROCR_VISIBLE_DEVICES=GPU-8e1bb56457addd1b in \S+, found it unset",
    )
    library = {"LD_AUDIT": ENVIRONMENT["LD_AUDIT"]}
    hooked.assert_refused(
        hooked.run(nodes=NODES, environment=library),
        "expected a mount at /usr/local/vgpu/share.conf beside LD_AUDIT",
    )
