"""Every container runtime that the tests start containers with."""

from tests.integration import oci
from tests.integration.container import Runtime
from tests.integration.containerd import containerd
from tests.integration.podman import podman

RUNTIMES = (
    Runtime("podman-runc", "host", podman(oci.installed("runc"))),
    # crun 1.8.1 fails on a hybrid hierarchy, and on cgroup2 needs CAP_SYS_RESOURCE.
    Runtime("podman-crun", "v1", podman(oci.installed("crun"))),
    Runtime("podman-runc-cgroup2", "v2", podman(oci.installed("runc"))),
    Runtime("podman-crun-1.21-cgroup2", "v2", podman(oci.trixie_crun)),
    Runtime("containerd-1.7", "host", containerd("trixie", oci.installed("runc"))),
    Runtime("containerd-2", "host", containerd("sid", oci.installed("runc"))),
)
