"""What a test asks of a container runtime, the same for all of them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from tests.integration import probe
from tests.integration.image import Image
from tests.integration.sandbox import Cgroups, Outcome, Sandbox


@dataclass(frozen=True)
class Container:
    image: Image
    cdi: Sequence[str] = ()
    """Qualified names of CDI devices."""
    command: Sequence[str] = ("/bin/sh", probe.PATH)
    environment: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    """Device nodes of the host, given beside those of the CDI devices."""
    binds: Mapping[str, str] = field(default_factory=dict)
    """Where folders or files of the host appear in the container, by their path on the host."""
    privileged: bool = False


Start = Callable[[Container], Outcome]
"""Starts a container, waits for its end, removes it; answers what the user of the runtime saw."""


@dataclass(frozen=True)
class Runtime:
    name: str
    cgroups: Cgroups
    opened: Callable[[Sandbox, Sequence[Image]], AbstractContextManager[Start]]
    """Makes the runtime ready in a sandbox, with these images loaded."""
    refusal: int
    """Exit status, gRPC code through CRI, of a container that its hook does not let start."""
    quotes_hook: bool
    """Whether the user then sees what the hook said, not only that it failed."""


def run_options(sandbox: Sandbox, container: Container) -> list[str]:
    """The options of `podman run`, and of `docker run`, which took the same names."""
    return [
        "--rm",
        "--network=none",
        f"--cgroup-parent=/{sandbox.cgroup}",
        "--cap-add=MKNOD",
        *(["--privileged"] if container.privileged else []),
        *(f"--device={name}" for name in (*container.cdi, *container.devices)),
        *(f"--env={name}={value}" for name, value in container.environment.items()),
        *(f"--volume={host}:{inside}" for host, inside in container.binds.items()),
    ]
