"""The hooks.d file against oci-hooks(5)."""

from __future__ import annotations

from cdi.plan.options import Options
from cdi.spec.hooksd import configuration


def test_every_container_is_looked_at_before_its_own_code_runs() -> None:
    document = configuration(Options(hook_path="/opt/amd-oci-hook", hook_stage="createRuntime"))
    assert document == {
        "version": "1.0.0",
        "hook": {
            "path": "/opt/amd-oci-hook",
            "args": ["amd-oci-hook", "run"],
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "timeout": 10,
        },
        "when": {"always": True},
        "stages": ["createRuntime"],
    }
