"""containerd as a kubelet uses it: a daemon in the sandbox, containers through CRI."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests import debian, need
from tests.integration.container import Container, Start
from tests.integration.image import Image
from tests.integration.image import archive as image_archive
from tests.integration.product import configure
from tests.integration.sandbox import Outcome, Sandbox

_STATE = "/run/containerd"
_API = "usr/share/gocode/src/k8s.io/cri-api/pkg/apis/runtime/v1"

# CDI is off in both, in 1.7 by default: the product turns it on. It has to change the first one, as
# what is imported would take the place of all that this says of CRI; to the second it adds a file.
# The score of the out-of-memory killer cannot be lowered without CAP_SYS_RESOURCE.
_CONFIGURATIONS = {
    "trixie": """
version = 2
root = {root}
state = {state}
[grpc]
address = {socket}
[plugins."io.containerd.grpc.v1.cri"]
restrict_oom_score_adj = true
sandbox_image = {image}
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {network}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = {runtime}
""",
    "forky": """
version = 3
imports = ["conf.d/*.toml"]
root = {root}
state = {state}
[grpc]
address = {socket}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {image}
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = false
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{network}]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = {runtime}
""",
}


@dataclass(frozen=True)
class Daemon:
    """How containerd is run in a sandbox."""

    command: Sequence[str | Path]
    ctr: Sequence[str | Path]
    """Its own client, for what kubelet sees."""
    socket: str

    def load(self, sandbox: Sandbox, images: Sequence[Image]) -> None:
        """Make the running daemon know these images."""
        for image in images:
            archive = image_archive(image, sandbox.folder / "image.tar")
            sandbox.must([*self.ctr, "images", "import", archive])


def prepared(
    sandbox: Sandbox,
    suite: str,
    oci_runtime: Path,
    pause: Image,
    *,
    cdi: bool = True,
    network: Path = Path("/opt/cni/bin"),
) -> Daemon:
    """containerd of a Debian suite, configured for a sandbox; `pause` waits in every pod.

    `network` has the CNI plugins, of which pods on the host's network need none.
    """
    programs = need.fetched(lambda: debian.unpacked(suite, "containerd")) / "usr/bin"
    socket = f"{_STATE}/containerd.sock"
    configuration = sandbox.folder / "containerd.toml"
    configuration.write_text(
        _CONFIGURATIONS[suite].format(
            root=json.dumps(f"{sandbox.folder}/containerd"),
            state=json.dumps(_STATE),
            socket=json.dumps(socket),
            image=json.dumps(pause.name),
            network=json.dumps(str(network)),
            runtime=json.dumps(str(oci_runtime)),
        )
    )
    path = f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"
    configure(sandbox, "containerd", configuration, *([] if cdi else ["--unset"]), path=path)
    environment = ["env", f"PATH={path}"]
    return Daemon(
        [*environment, "containerd", f"--config={configuration}"],
        [*environment, "ctr", f"--address={socket}", "--namespace=k8s.io"],
        socket,
    )


@contextmanager
def channel_to(sandbox: Sandbox, daemon: Daemon) -> Iterator[grpc.Channel]:
    """A connection to the daemon, which has answered."""
    with grpc.insecure_channel(f"unix://{sandbox.path(daemon.socket)}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)
        yield channel


def containerd(
    suite: str, oci_runtime: Callable[[Sandbox], Path]
) -> Callable[[Sandbox, Sequence[Image]], AbstractContextManager[Start]]:
    """containerd of a Debian suite; `oci_runtime` answers the program that it shall use.

    All containers are of one pod on the host's network.
    """

    @contextmanager
    def opened(sandbox: Sandbox, images: Sequence[Image]) -> Iterator[Start]:
        # The interface is the same for both containerds; only Debian 14 packages it.
        interface = need.fetched(lambda: debian.unpacked("forky", "golang-k8s-cri-api-dev")) / _API
        daemon = prepared(sandbox, suite, oci_runtime(sandbox), images[0])
        with (sandbox.folder / "containerd.log").open("w") as log:
            process = subprocess.Popen(sandbox.enter(daemon.command), stdout=log, stderr=log)
        try:
            with channel_to(sandbox, daemon) as channel:
                daemon.load(sandbox, images)
                yield _Pod(sandbox, channel, interface).start
        finally:
            process.terminate()
            process.wait(timeout=60)

    return opened


class _Pod:
    """A pod, and containers in it one after the other."""

    def __init__(self, sandbox: Sandbox, channel: grpc.Channel, interface: Path) -> None:
        self._messages, services = _compiled(interface / "api.proto")
        self._service = services.RuntimeServiceStub(channel)
        self._logs = sandbox.folder / "pod"
        self._count = 0
        self._config = self._messages.PodSandboxConfig(
            metadata={"name": "pod", "uid": "pod", "namespace": "default"},
            log_directory=str(self._logs),
            linux={
                "cgroup_parent": f"/{sandbox.cgroup}",
                "security_context": {
                    "namespace_options": {"network": self._messages.NODE},
                    "privileged": True,
                },
            },
        )
        request = self._messages.RunPodSandboxRequest(config=self._config)
        self._pod = self._service.RunPodSandbox(request).pod_sandbox_id

    def start(self, container: Container) -> Outcome:
        self._count += 1
        log = f"{self._count}.log"
        try:
            identity = self._service.CreateContainer(
                self._messages.CreateContainerRequest(
                    pod_sandbox_id=self._pod,
                    sandbox_config=self._config,
                    config=_config(self._messages, container, self._count, log),
                )
            ).container_id
            request = self._messages.StartContainerRequest(container_id=identity)
            self._service.StartContainer(request)
        except grpc.RpcError as refusal:
            code, _ = refusal.code().value
            return Outcome(code, "", f"{refusal.code().name}: {refusal.details()}")
        status = self._end(identity)
        return Outcome(status, *streams(self._logs / log))

    def _end(self, identity: str) -> int:
        """Wait for the container's end, remove it, answer its exit status."""
        request = self._messages.ContainerStatusRequest(container_id=identity)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = self._service.ContainerStatus(request).status
            if status.state == self._messages.CONTAINER_EXITED:
                removal = self._messages.RemoveContainerRequest(container_id=identity)
                self._service.RemoveContainer(removal)
                return int(status.exit_code)
            time.sleep(0.02)
        raise TimeoutError(f"container {identity} did not end")


def _config(messages: Any, container: Container, number: int, log: str) -> Any:
    return messages.ContainerConfig(
        metadata={"name": f"c{number}"},
        image={"image": container.image.name},
        command=container.command,
        envs=[
            {"key": key, "value": value.encode()} for key, value in container.environment.items()
        ],
        mounts=[
            {"host_path": host, "container_path": inside}
            for host, inside in container.binds.items()
        ],
        devices=[
            {"host_path": path, "container_path": path, "permissions": "rw"}
            for path in container.devices
        ],
        CDI_devices=[{"name": name} for name in container.cdi],
        log_path=log,
        linux={
            "security_context": {
                "privileged": container.privileged,
                # As kubelet has it, unless a pod shares its processes.
                "namespace_options": {"network": messages.NODE, "pid": messages.CONTAINER},
            }
        },
    )


def _compiled(proto: Path) -> tuple[Any, Any]:
    """The messages and the services of a protocol file; grpc looks for it in `sys.path`."""
    sys.path.append(str(proto.parent))
    try:
        messages, services = grpc.protos_and_services(proto.name)
    finally:
        sys.path.remove(str(proto.parent))
    return messages, services


def streams(log: Path) -> tuple[str, str]:
    """Standard output and error out of a CRI log: `time stream F|P text` lines."""
    streams = {"stdout": "", "stderr": ""}
    for line in log.read_text().splitlines():
        _, stream, tag, text = line.split(" ", 3)
        streams[stream] += text if tag == "P" else f"{text}\n"
    return streams["stdout"], streams["stderr"]
