"""The chart on a cluster: a release that the real helm installs, changes and takes away."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import container_image, need
from tests.cluster.api import Json
from tests.cluster.control import ADMIN, ControlPlane
from tests.cluster.node import Node
from tests.helm import CHART, helm, kubectl
from tests.integration.product import USAGE

NAME = "amd-cdi"
NAMESPACE = "amd-cdi"
WAIT = "--wait=watcher"


@dataclass(frozen=True)
class Release:
    plane: ControlPlane
    node: Node
    user: str = f"system:serviceaccount:{NAMESPACE}:{NAME}"

    def helm(self, *arguments: str | Path, values: Any = None) -> str:
        """What this command prints; it must succeed."""
        given = [] if values is None else ["--values=-"]
        return self._run(need.fetched(helm), *arguments, *given, text=json.dumps(values))

    def kubectl(self, *arguments: str | Path) -> str:
        """What this command prints; it must succeed."""
        return self._run(need.fetched(kubectl), *arguments)

    def _run(self, *command: str | Path, text: str = "") -> str:
        home = self.plane.folder / "home"
        done = subprocess.run(
            [*command, f"--namespace={NAMESPACE}"],
            env={
                **os.environ,
                "KUBECONFIG": str(self.plane.kubeconfig(ADMIN)),
                "HOME": str(home),
            },
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\n{self.log()[-6000:]}"
        return done.stdout

    def install(self) -> None:
        words = ("install", NAME, CHART, "--create-namespace", WAIT)
        self.helm(*words, values=self.values)

    def upgrade(self, **values: Any) -> None:
        """Change these values of the plugin."""
        document = self.values
        document["devicePlugin"] |= values
        self.helm("upgrade", NAME, CHART, WAIT, values=document)

    def rollback(self) -> None:
        """Go back to what was before the last change."""
        self.helm("rollback", NAME, WAIT)

    def uninstall(self) -> None:
        self.helm("uninstall", NAME, WAIT)

    @property
    def values(self) -> Json:
        """What a sample node and a network without services make of the chart's values."""
        port = self.plane.address.rpartition(":")[2]
        registry, _, repository = container_image.NAME.partition(":")[0].partition("/")
        return {
            "devicePlugin": {
                "image": {"registry": registry, "repository": repository, "pullPolicy": "Never"},
                "hostNetwork": True,
                "extraEnvs": [
                    {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
                    {"name": "KUBERNETES_SERVICE_PORT", "value": port},
                ],
                "extraArgs": [
                    "--sysroot=/sample",
                    "--spec-dir=/etc/cdi",
                    "--state-dir=/var/lib/amd-cdi",
                    f"--usage-dir={USAGE}",
                ],
                "extraVolumes": [{"name": "sample", "hostPath": {"path": str(self.node.sysroot)}}],
                "extraVolumeMounts": [{"name": "sample", "mountPath": "/sample"}],
            }
        }

    @property
    def pod(self) -> Json:
        """The one pod of the DaemonSet."""
        items = self.plane.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        (pod,) = [one for one in items if one["metadata"]["name"].startswith(f"{NAME}-")]
        return pod

    @property
    def process(self) -> int:
        """The number of the plugin, as the sandbox counts."""
        (status,) = self.pod["status"]["containerStatuses"]
        identity = status["containerID"].removeprefix("containerd://")
        lines = self.node.sandbox.must([*self.node.daemon.ctr, "tasks", "list"]).splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(identity)))

    def log(self) -> str:
        """What all containers of the release have said, and what became of them."""
        items = self.plane.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        states = [
            f"{pod['metadata']['name']}: {json.dumps(pod['status'])}"
            for pod in items
            if pod["status"]["phase"] == "Failed"
        ]
        folder = self.node.sandbox.path("/var/log/pods")
        paths = sorted(folder.glob(f"{NAMESPACE}_*/*/*.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join([*(f"{path.parent.name}: {path.read_text()}" for path in paths), *states])
