"""The hook: whether it is there, starts, and lets a container go that it should let go."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.doctor.finding import Finding
from cdi.plan.options import Policy
from cdi.spec.renderer import (
    CONTAINER_LIBRARY,
    CONTAINER_VALUES,
    HOOK_ENV,
    HOOK_TIMEOUT_SECONDS,
)

BYTES = 1 << 30
ROCR = "GPU-0000000000000001"
GPU = f"pci=0000:00:00.0,index=0,rocr={ROCR},cus=0-3,count=8,atom=4,bytes={BYTES},render=128"
"""A share that no GPU has: half of one with 8 CUs, and a GiB."""

ENVIRONMENT = (
    f"ROCR_VISIBLE_DEVICES={ROCR}",
    "HIP_VISIBLE_DEVICES=0",
    "HSA_CU_MASK=0:0-3",
    f"HIP_DEVICE_MEMORY_LIMIT_0={BYTES}",
    f"LD_AUDIT={CONTAINER_LIBRARY}",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """How the hook decided."""

    passed: bool
    said: str


@dataclass(frozen=True, slots=True)
class Hook:
    """The hook as it lies on a machine."""

    path: str
    problem: str
    """Why it cannot be run, empty if it can."""
    trial: Trial | None
    """None where it was not tried, as the machine is not this one."""


def read(root: Path, path: str) -> Hook:
    """Look at the hook, and try it with a share that it has to let go."""
    problem = _problem(root, path)
    here = root == Path("/") and not problem
    return Hook(path, problem, attempt(path, "none") if here else None)


def findings(hook: Hook) -> Iterator[Finding]:
    """Yield what follows."""
    consequence = "no container with a share starts"
    remedy = "as root: amd-cdi install; or name another place with generate --hook-path"
    if hook.problem:
        yield Finding("fails", "the hook cannot be run", hook.problem, consequence, remedy)
    elif hook.trial is None:
        yield Finding("works", "the hook is there", f"{hook.path}, not tried under a sysroot")
    elif not hook.trial.passed:
        yield Finding(
            "fails", "the hook fails", f"{hook.path}: {hook.trial.said}", consequence, remedy
        )
    else:
        yield Finding("works", "the hook works", f"{hook.path} let a share go that is in order")


def attempt(hook: str, require: Policy, library: str = "", rootfs: Path | None = None) -> Trial:
    """Run the hook as a runtime does before a container with a share starts.

    Nothing of it stays: the container is none, and the hook takes a folder for its machine's root.
    """
    with tempfile.TemporaryDirectory(prefix="amd-cdi-doctor-") as name:
        folder = Path(name)
        values = folder / "share.conf"
        values.write_text("".join(f"{entry}\n" for entry in ENVIRONMENT))
        (folder / "rootfs").mkdir()
        mounts = {CONTAINER_LIBRARY: library or str(values), CONTAINER_VALUES: str(values)}
        config = _config(str(rootfs or folder / "rootfs"), mounts)
        (folder / "config.json").write_text(json.dumps(config))
        state = {"ociVersion": "1.0.2", "id": "amd-cdi-doctor", "status": "creating"}
        words = [hook, "run", "--share", "doctor", "--require", require, "--gpu", GPU]
        words += ["--library", mounts[CONTAINER_LIBRARY], "--values", str(values)]
        try:
            done = subprocess.run(  # noqa: S603 -- the node's own hook
                [*words, "--sysroot", name],
                input=json.dumps({**state, "pid": os.getpid(), "bundle": name}),
                env=dict(entry.split("=", 1) for entry in HOOK_ENV),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HOOK_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Trial(False, str(error))  # noqa: FBT003 -- what the field is called
    said = done.stderr.strip().rpartition("refused: ")[2]
    return Trial(done.returncode == 0, said or f"exit status {done.returncode}")


def _config(rootfs: str, mounts: dict[str, str]) -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "process": {"args": ["/bin/sh"], "cwd": "/", "env": list(ENVIRONMENT)},
        "root": {"path": rootfs},
        "mounts": [
            {"destination": place, "type": "bind", "source": source, "options": ["bind", "ro"]}
            for place, source in mounts.items()
        ],
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }


def _problem(root: Path, path: str) -> str:
    """Return why the hook cannot be run."""
    place = root / path.lstrip("/")
    if not place.is_file():
        return f"no file at {path}"
    if not os.access(place, os.X_OK):
        return f"{path} is not executable"
    with place.open("rb") as file:
        line = file.readline(256)
    if line.startswith(b"#!"):
        words = line[2:].split()
        interpreter = os.fsdecode(words[0]) if words else ""
        if not (root / interpreter.lstrip("/")).exists():
            return f"{path} needs {interpreter or 'an interpreter'}, which is missing"
    return ""
