"""`amd-cdi inject` against the CDI implementations in podman and containerd."""

import json
from operator import attrgetter
from typing import Any

import pytest

from tests.integration.product import amd_cdi
from tests.integration.record import Recorded
from tests.integration.runtimes import ENGINES

# Docker adds mounts of its own afterwards, and so changes their order.
pytestmark = pytest.mark.parametrize(
    "machine",
    [engine for engine in ENGINES if engine.name != "docker"],
    ids=attrgetter("name"),
    indirect=True,
)


def without_share(configuration: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it was before the engine applied the CDI device."""
    before: dict[str, Any] = json.loads(json.dumps(configuration))
    linux, process = before["linux"], before["process"]
    own = ("ROCR_", "HIP_", "HSA_", "LD_AUDIT")
    process["env"] = [entry for entry in process["env"] if not entry.startswith(own)]
    numbers = [(device["major"], device["minor"]) for device in linux.pop("devices")]
    linux["resources"]["devices"] = [
        rule
        for rule in linux["resources"]["devices"]
        if (rule.get("major"), rule.get("minor")) not in numbers
    ]
    before["mounts"] = [
        mount
        for mount in before["mounts"]
        if not mount["destination"].startswith("/usr/local/vgpu/")
    ]
    del before["hooks"]["createRuntime"]
    return before


def test_it_makes_the_same_of_a_configuration(recorded: Recorded) -> None:
    sandbox = recorded.machine.sandbox
    base = sandbox.folder / "base.json"
    base.write_text(json.dumps(without_share(recorded.configuration)))
    injected = json.loads(amd_cdi(sandbox, "inject", str(base), "amd.com/gpu=share-alice"))
    assert injected == recorded.configuration
