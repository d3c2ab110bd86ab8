"""`amd-cdi inject` against the CDI implementations in podman and containerd."""

import json
from operator import attrgetter
from typing import Any

import pytest

from tests.integration.product import amd_cdi
from tests.integration.record import Recorded
from tests.integration.runtimes import ENGINES

pytestmark = pytest.mark.parametrize("machine", ENGINES, ids=attrgetter("name"), indirect=True)


def without_share(configuration: dict[str, Any]) -> dict[str, Any]:
    """The configuration as it was before the engine applied the CDI device."""
    own = ("ROCR_", "HIP_", "HSA_", "LD_AUDIT")
    process, linux = dict(configuration["process"]), dict(configuration["linux"])
    process["env"] = [entry for entry in process["env"] if not entry.startswith(own)]
    rules = [rule for rule in linux["resources"]["devices"] if not rule["allow"]]
    linux |= {"devices": [], "resources": {**linux["resources"], "devices": rules}}
    mounts = [
        mount
        for mount in configuration["mounts"]
        if not mount["destination"].startswith("/usr/local/vgpu/")
    ]
    return {**configuration, "process": process, "linux": linux, "mounts": mounts, "hooks": {}}


def test_it_makes_the_same_of_a_configuration(recorded: Recorded) -> None:
    sandbox = recorded.machine.sandbox
    base = sandbox.folder / "base.json"
    base.write_text(json.dumps(without_share(recorded.configuration)))
    injected = json.loads(amd_cdi(sandbox, "inject", str(base), "amd.com/gpu=share-alice"))
    assert injected == recorded.configuration
