"""Every container runtime that the tests start containers with."""

from tests.integration import oci
from tests.integration.container import Runtime
from tests.integration.containerd import containerd
from tests.integration.docker import docker
from tests.integration.podman import podman

_RUNC = oci.installed("runc")
# Version 1.8.1 fails on a hybrid hierarchy, and on cgroup2 needs CAP_SYS_RESOURCE.
_CRUN = oci.installed("crun")

_CRI_UNKNOWN = 2
"""What CRI answers when a container cannot be created (gRPC status codes)."""

ENGINES = (
    Runtime("podman-runc", "host", podman(_RUNC), refusal=126, quotes_hook=True),
    Runtime("podman-crun", "v1", podman(_CRUN), refusal=126, quotes_hook=False),
    Runtime("podman-runc-cgroup2", "v2", podman(_RUNC), refusal=126, quotes_hook=True),
    Runtime(
        "podman-crun-1.21-cgroup2", "v2", podman(oci.trixie_crun), refusal=126, quotes_hook=False
    ),
    Runtime("containerd-1.7", "host", containerd("trixie", _RUNC), _CRI_UNKNOWN, quotes_hook=True),
    Runtime("docker", "host", docker, refusal=125, quotes_hook=True),
    Runtime("containerd-2", "host", containerd("forky", _RUNC), _CRI_UNKNOWN, quotes_hook=True),
)

BARE = (
    Runtime("runc", "host", oci.bare(_RUNC), refusal=1, quotes_hook=True),
    Runtime("crun", "v1", oci.bare(_CRUN), refusal=255, quotes_hook=False),
    Runtime("crun-1.21-cgroup2", "v2", oci.bare(oci.trixie_crun), refusal=255, quotes_hook=False),
)
