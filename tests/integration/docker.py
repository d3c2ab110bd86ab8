"""Docker: its daemon with a containerd of its own in the sandbox, containers by its command."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests import debian, need
from tests.integration.container import Container, Start, run_options
from tests.integration.image import Image, archive
from tests.integration.product import configure
from tests.integration.sandbox import Outcome, Sandbox

# CDI is off by default in Docker 26: the product turns it on.
_CONFIGURATION = {
    "bridge": "none",
    "iptables": False,
    "ip6tables": False,
    "storage-driver": "overlay2",
    "exec-root": "/run/docker",
    "pidfile": "/run/docker.pid",
    "hosts": ["unix:///run/docker.sock"],
}


@contextmanager
def docker(sandbox: Sandbox, images: Sequence[Image]) -> Iterator[Start]:
    """Docker 26 of Debian 13 with the installed runc."""
    need.program("runc")
    files = need.fetched(lambda: debian.unpacked("trixie", "docker.io", "docker-cli"))
    containerd = need.fetched(lambda: debian.unpacked("trixie", "containerd"))
    path = f"{containerd}/usr/bin:{files}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    configuration = sandbox.folder / "docker.json"
    data = {"data-root": str(sandbox.folder / "docker")}
    configuration.write_text(json.dumps({**_CONFIGURATION, **data}))
    configure(sandbox, "docker", configuration, path=path)
    command = [str(files / "usr/bin/docker"), "--host=unix:///run/docker.sock"]
    with (sandbox.folder / "docker.log").open("w") as log:
        daemon = subprocess.Popen(
            sandbox.enter(["env", f"PATH={path}", "dockerd", f"--config-file={configuration}"]),
            stdout=log,
            stderr=log,
        )
    try:
        _wait(sandbox, command, daemon)
        for image in images:
            tarball = archive(image, sandbox.folder / "image.tar")
            sandbox.must([*command, "load", f"--input={tarball}"])

        def start(container: Container) -> Outcome:
            run = [*command, "run", *run_options(sandbox, container)]
            return sandbox.run([*run, container.image.name, *container.command])

        yield start
    finally:
        daemon.terminate()
        daemon.wait(timeout=60)


def _wait(sandbox: Sandbox, command: Sequence[str], daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while sandbox.run([*command, "version"]).status != 0:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError((sandbox.folder / "docker.log").read_text()[-2000:])
        time.sleep(0.1)
