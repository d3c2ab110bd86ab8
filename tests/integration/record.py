"""The configuration that a runtime really made of a share, kept by a hook before the hook."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.integration.machine import Machine
from tests.integration.product import HOOK, amd_cdi

# Of the name by which a hook without arguments finds that a share has its own.
RECORDER = "/opt/recorder/amd-oci-hook"

_SCRIPT = f"""#!/usr/bin/python3 -IS
import json, shutil, subprocess, sys
state = sys.stdin.buffer.read()
shutil.copy(json.loads(state)["bundle"] + "/config.json", "FOLDER/recorded.json")
sys.exit(subprocess.run(["{HOOK}", *sys.argv[1:]], input=state).returncode)
"""


@dataclass(frozen=True)
class Recorded:
    machine: Machine
    configuration: dict[str, Any]
    """config.json of a container with share-alice, as its hook at createRuntime found it."""


@contextmanager
def recorded(node: Machine) -> Iterator[Recorded]:
    """Move the hook of every share to createRuntime, and start a container with share-alice."""
    script = node.sandbox.path(RECORDER)
    script.parent.mkdir()
    script.write_text(_SCRIPT.replace("FOLDER", str(node.sandbox.folder)))
    script.chmod(0o755)
    record = node.sandbox.folder / "recorded.json"
    generate = ("generate", "--sample=mixed", "--split=2")
    amd_cdi(node.sandbox, *generate, "--hook-stage=createRuntime", f"--hook-path={RECORDER}")
    try:
        deadline = time.monotonic() + 10
        while not record.exists():
            # containerd reads a changed spec a moment later, when inotify tells it.
            assert time.monotonic() < deadline
            assert node.run("share-alice").status == 0
        yield Recorded(node, json.loads(record.read_text()))
    finally:
        amd_cdi(node.sandbox, *generate, "--hook-stage=prestart", f"--hook-path={HOOK}")
