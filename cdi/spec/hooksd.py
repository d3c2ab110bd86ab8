"""The configuration by which CRI-O and Podman run the hook for containers without CDI.

The hook is told of no share there. It looks for one in the container's configuration, and a
container that has none is left alone.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from cdi.plan.options import Options
from cdi.spec.renderer import HOOK_ENV, HOOK_TIMEOUT_SECONDS


def configuration(options: Options) -> dict[str, Any]:
    """Return the document of oci-hooks(5), version 1.0.0.

    It applies always: ``when`` can tell annotations, commands and bind mounts apart, but neither
    environment nor CDI devices.
    """
    return {
        "version": "1.0.0",
        "hook": {
            "path": options.hook_path,
            "args": [PurePosixPath(options.hook_path).name, "run"],
            "env": list(HOOK_ENV),
            "timeout": HOOK_TIMEOUT_SECONDS,
        },
        "when": {"always": True},
        "stages": [options.hook_stage],
    }
