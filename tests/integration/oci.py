"""The OCI runtimes, runc and crun: which program, and containers started by it alone."""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests import debian, need
from tests.integration.container import Container, Start
from tests.integration.image import STATIC_BUSYBOX, Image
from tests.integration.product import amd_cdi
from tests.integration.sandbox import Outcome, Sandbox

Find = Callable[[Sandbox], Path]
"""Answers an OCI runtime's program, after having made the sandbox fit for it."""

_LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")

_BUNDLES = "/run/bundles"

# A static shell, since the libc of everything else changes under it file by file.
_BIND = """
for new in "$1"/*.so*; do
    old=$2/${new##*/}
    [ ! -e "$old" ] || mount --bind "$new" "$old"
done
"""

# Arguments: the image's root filesystem, the bundle. What the container writes stays in memory.
_BUNDLE = """
set -eu
mkdir -p "$2/rootfs" "$2/over" "$2/work"
mount -t overlay -o "lowerdir=$1,upperdir=$2/over,workdir=$2/work" overlay "$2/rootfs"
"""


def installed(name: str) -> Find:
    """The OCI runtime that is installed under this name."""

    def find(_: Sandbox) -> Path:
        return need.program(name)

    return find


def trixie_crun(sandbox: Sandbox) -> Path:
    """crun 1.21 of Debian 13; the whole sandbox gets the libc of Debian 13 for it."""
    files = need.fetched(lambda: debian.unpacked("trixie", "crun", "libc6"))
    libraries = files / _LIBRARIES.relative_to("/")
    sandbox.must([need.file(STATIC_BUSYBOX), "sh", "-c", _BIND, "sh", libraries, _LIBRARIES])
    return files / "usr/bin/crun"


def bare(find: Find) -> Callable[[Sandbox, Sequence[Image]], AbstractContextManager[Start]]:
    """An OCI runtime without an engine; `amd-cdi inject` does what an engine does with CDI.

    The container's own environment comes last, and so replaces that of its CDI devices.
    """

    @contextmanager
    def opened(sandbox: Sandbox, _: Sequence[Image]) -> Iterator[Start]:
        program = find(sandbox)
        sandbox.must(["mkdir", _BUNDLES])
        sandbox.must([program, "spec", f"--bundle={_BUNDLES}"])
        template = sandbox.path(f"{_BUNDLES}/config.json").read_text()
        numbers = itertools.count(1)

        def start(container: Container) -> Outcome:
            name = f"c{next(numbers)}"
            bundle = f"{_BUNDLES}/{name}"
            sandbox.must(["sh", "-c", _BUNDLE, "sh", container.image.root, bundle])
            path = sandbox.path(f"{bundle}/config.json")
            config = json.loads(template)
            _fill(config, container, sandbox, name)
            path.write_text(json.dumps(config))
            if container.cdi:
                injected = amd_cdi(sandbox, "inject", f"{bundle}/config.json", *container.cdi)
                config = json.loads(injected)
            environment = container.environment.items()
            config["process"]["env"] += [f"{key}={value}" for key, value in environment]
            path.write_text(json.dumps(config))
            return sandbox.run([program, "run", f"--bundle={bundle}", name])

        yield start

    return opened


def _fill(config: dict[str, Any], container: Container, sandbox: Sandbox, name: str) -> None:
    """Make the runtime's own template the configuration of a container."""
    if container.privileged:
        raise ValueError("only engines have privileged containers")
    process, linux = config["process"], config["linux"]
    process |= {"args": list(container.command), "terminal": False}
    for capabilities in process["capabilities"].values():
        capabilities.append("CAP_MKNOD")
    config["root"]["readonly"] = False
    config["mounts"] += [
        {"destination": inside, "source": host, "type": "bind", "options": ["bind"]}
        for host, inside in container.binds.items()
    ]
    linux["cgroupsPath"] = f"/{sandbox.cgroup}/{name}"
    for path in container.devices:
        number = sandbox.path(path).stat().st_rdev
        device = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        linux.setdefault("devices", []).append({**device, "path": path})
        linux["resources"]["devices"].append({**device, "allow": True, "access": "rw"})
