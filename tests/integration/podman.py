"""Podman with an OCI runtime of choice, all that it keeps is in the sandbox."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests import need
from tests.integration.container import Container, Start, run_options
from tests.integration.image import Image
from tests.integration.image import archive as image_archive
from tests.integration.product import configure
from tests.integration.sandbox import Outcome, Sandbox

# Limits that a machine without CAP_SYS_RESOURCE can set, and no journal. Podman 4.3 by itself reads
# the first folder of hooks only.
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
pids_limit = 0
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""


def podman(
    oci_runtime: Callable[[Sandbox], Path],
) -> Callable[[Sandbox, Sequence[Image]], AbstractContextManager[Start]]:
    """The installed podman; `oci_runtime` answers the program that it shall use."""

    @contextmanager
    def opened(sandbox: Sandbox, images: Sequence[Image]) -> Iterator[Start]:
        need.program("conmon")
        configuration = sandbox.folder / "containers.conf"
        configuration.write_text(CONFIGURATION)
        configure(sandbox, "podman", configuration)
        command = [
            str(need.program("podman")),
            f"--root={sandbox.folder}/storage",
            "--runroot=/run/podman",
            f"--runtime={oci_runtime(sandbox)}",
        ]
        environment = {"CONTAINERS_CONF": str(configuration)}
        for image in images:
            archive = image_archive(image, sandbox.folder / "image.tar")
            sandbox.must([*command, "load", f"--input={archive}"], environment=environment)

        def start(container: Container) -> Outcome:
            run = [*command, "run", *run_options(sandbox, container)]
            words = [*run, container.image.name, *container.command]
            return sandbox.run(words, environment=environment)

        yield start

    return opened
