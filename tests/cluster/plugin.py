"""The device plugin as it is installed on a cluster."""

import sys
from dataclasses import dataclass
from typing import Protocol

from tests.cluster.control import ControlPlane
from tests.cluster.node import Node
from tests.cluster.service import Service
from tests.integration.product import REPOSITORY, USAGE
from tests.plugin.scheduler import NODE

NAMESPACE = "amd-cdi"
NAME = "amd-device-plugin"

RIGHTS = frozenset(
    {
        ("get", "nodes"),
        ("patch", "nodes"),
        ("get", "pods"),
        ("list", "pods"),
        ("watch", "pods"),
        ("patch", "pods"),
        ("create", "events"),
    }
)
"""What the plugin may do, and does."""


class Plugin(Protocol):
    """A plugin on the node, whoever installed it."""

    user: str
    """Whom the API server takes it for."""

    def start(self) -> None: ...

    def stop(self, signal: str = "TERM") -> None:
        """End it; with KILL without its having a say."""

    def pause(self) -> None:
        """Let it do nothing until it is resumed."""

    def resume(self) -> None: ...

    def log(self) -> str: ...


@dataclass
class Process:
    """The plugin as a process on the node, with a service account of its own."""

    service: Service
    user: str = f"system:serviceaccount:{NAMESPACE}:{NAME}"

    def start(self) -> None:
        self.service.start()

    def stop(self, signal: str = "TERM") -> None:
        self.service.stop(signal)

    def pause(self) -> None:
        self.service.pause()

    def resume(self) -> None:
        self.service.resume()

    def log(self) -> str:
        return self.service.log.read_text()


def installed(plane: ControlPlane, node: Node) -> Process:
    """The plugin with its account and exactly its rights; not started yet."""
    token = _account(plane)
    command = [
        *(sys.executable, "-c", "from deviceplugin.command import main; main()"),
        f"--sysroot={node.sysroot}",
        "--kubelet-dir=/var/lib/kubelet/device-plugins",
        f"--node-name={NODE}",
        *("--spec-dir=/etc/cdi", "--state-dir=/var/lib/amd-cdi"),
        f"--usage-dir={USAGE}",
    ]
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "KUBECONFIG": str(plane.kubeconfig(NAME, token)),
    }
    return Process(Service(node.sandbox, NAME, command, environment))


def _account(plane: ControlPlane) -> str:
    """The token of a new service account with the plugin's rights."""
    api = plane.api
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    api.call("POST", accounts, {"metadata": {"name": NAME}})
    rules = [
        {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
        for verb, resource in sorted(RIGHTS)
    ]
    api.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": NAME}, "rules": rules})
    api.call(
        "POST",
        f"{rbac}/clusterrolebindings",
        {
            "metadata": {"name": NAME},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": NAME,
            },
            "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": NAME}],
        },
    )
    token = api.call("POST", f"{accounts}/{NAME}/token", {"spec": {"expirationSeconds": 7200}})
    return str(token["status"]["token"])
