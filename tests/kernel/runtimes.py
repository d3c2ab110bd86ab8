"""The container runtimes of the guest: runc and crun alone, and podman on either."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import debian, need
from tests.kernel.containers import Container, Hook, Runtime

# No limits that the guest has not, no journal.
_PODMAN = """
[containers]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""

# A program of Debian 13 with the loader and libraries it was built for, under Debian 12.
_WRAPPER = """#!/bin/sh
exec {files}/usr/lib64/ld-linux-x86-64.so.2 --library-path {files}/usr/lib/x86_64-linux-gnu \
{files}/usr/bin/crun "$@"
"""


def fetch() -> Path:
    """crun 1.21 and the libc it needs; they come from a mirror only where the cache lacks them."""
    return debian.unpacked("trixie", "crun", "libc6")


def _trixie_crun() -> str:
    wrapper = Path("/run/crun-1.21")
    wrapper.write_text(_WRAPPER.format(files=fetch()))
    wrapper.chmod(0o755)
    return str(wrapper)


def _installed(name: str) -> Callable[[], str]:
    def find() -> str:
        return str(need.program(name))

    return find


def _alone(name: str, find: Callable[[], str]) -> Runtime:
    """An OCI runtime with a bundle such as an engine writes it."""

    def command(container: Container, folder: Path, program: Sequence[str]) -> list[str]:
        bundle = folder / container.name
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(config(container, program)))
        return [find(), "run", f"--bundle={bundle}", container.name]

    def update(container: str) -> list[str]:
        return [find(), "update", "--pids-limit=100", container]

    return Runtime(name, command, update)


def _podman(name: str, find: Callable[[], str]) -> Runtime:
    """Podman, with a CDI device that brings the container's hooks, environment and binds."""

    def podman() -> list[str]:
        need.program("conmon")
        configuration = Path("/run/containers.conf")
        configuration.write_text(_PODMAN)
        program = str(need.program("podman"))
        return ["env", f"CONTAINERS_CONF={configuration}", program, f"--runtime={find()}"]

    def command(container: Container, folder: Path, program: Sequence[str]) -> list[str]:
        specs = Path("/run/cdi")
        specs.mkdir(exist_ok=True)
        (specs / f"{container.name}.json").write_text(json.dumps(_spec(container)))
        options = [
            "--rm",
            "--interactive",
            "--network=none",
            f"--name={container.name}",
            f"--cgroup-parent=/{container.parent}",
            f"--device=amd.com/gpu={container.name}",
        ]
        return [*podman(), "run", *options, "--rootfs", str(container.root), *program]

    def update(container: str) -> list[str]:
        return [*podman(), "update", "--cpus=0.5", container]

    return Runtime(name, command, update)


def config(container: Container, program: Sequence[str]) -> dict[str, object]:
    """The OCI configuration of a container with this program."""
    stages: dict[str, list[dict[str, object]]] = {}
    for hook in container.hooks:
        stages.setdefault(hook.stage, []).append(_hook(hook))
    binds: list[dict[str, object]] = [
        {
            "destination": bind.target,
            "type": "bind",
            "source": str(bind.source),
            "options": ["bind", "ro"],
        }
        for bind in container.binds
    ]
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(program),
            "env": _environment(container),
            "cwd": "/",
        },
        "root": {"path": str(container.root)},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, *binds],
        "hooks": stages,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "mount"}],
            "cgroupsPath": f"/{container.parent}/{container.name}",
        },
    }


def _spec(container: Container) -> dict[str, object]:
    edits = {
        "env": _environment(container),
        "hooks": [{"hookName": hook.stage, **_hook(hook)} for hook in container.hooks],
        "mounts": [
            {
                "hostPath": str(bind.source),
                "containerPath": bind.target,
                "options": ["bind", "ro"],
            }
            for bind in container.binds
        ],
    }
    return {
        "cdiVersion": "0.5.0",
        "kind": "amd.com/gpu",
        "devices": [{"name": container.name, "containerEdits": edits}],
    }


def _hook(hook: Hook) -> dict[str, object]:
    return {
        "path": hook.path,
        "args": list(hook.args),
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        "timeout": 10,
    }


def _environment(container: Container) -> list[str]:
    return [f"{name}={value}" for name, value in container.environment.items()]


RUNTIMES = (
    _alone("runc", _installed("runc")),
    _alone("crun", _installed("crun")),
    _alone("crun-1.21", _trixie_crun),
    _podman("podman-runc", _installed("runc")),
    _podman("podman-crun", _installed("crun")),
)
