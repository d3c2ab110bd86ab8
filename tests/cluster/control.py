"""The control plane of a cluster: etcd, the API server, the controller manager, the scheduler.

All of it on the loopback interface, at ports that were free. Who may do what is decided by RBAC,
and what the plugin does is audited.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import need
from tests.cluster.api import Api
from tests.cluster.programs import Programs
from tests.cluster.service import Service
from tests.integration.sandbox import Sandbox, sandbox
from tests.plugin.scene import await_that
from tests.plugin.scheduler import NODE

ADMIN = "admin"
KUBELET = f"system:node:{NODE}"
CONTROLLERS = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"

_GROUPS = {ADMIN: "system:masters", KUBELET: "system:nodes", CONTROLLERS: "", SCHEDULER: ""}


@dataclass
class ControlPlane:
    folder: Path
    address: str
    server: Service

    def kubeconfig(self, user: str, token: str = "") -> Path:
        """A file that KUBECONFIG can name; users of the control plane have tokens of their own."""
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {
            "server": self.address,
            "certificate-authority": str(self.certificate),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token or _token(user)}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(document))
        return path

    @property
    def certificate(self) -> Path:
        return self.folder / "certificates/apiserver.crt"

    @property
    def api(self) -> Api:
        """The server as its administrator meets it."""
        return Api(self.address, self.certificate, _token(ADMIN))

    def await_ready(self) -> None:
        """Wait until the server answers."""
        await_that(lambda: alive(self.server) and self.certificate.exists(), 60)
        await_that(lambda: alive(self.server) and self.api.ready(), 60)

    def audited(self) -> list[dict[str, Any]]:
        """What service accounts of other namespaces than the cluster's own have asked for."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]


@contextmanager
def control_plane(folder: Path, programs: Programs) -> Iterator[ControlPlane]:
    """A running control plane; it answers, and pods can be created."""
    folder.mkdir()
    with sandbox(folder, "host", ()) as made, ExitStack() as ending:
        plane, services = _services(made, programs)
        for service in services:
            service.start()
            ending.callback(service.stop, "KILL")
            if service is plane.server:
                plane.await_ready()
        # Without it no pod is taken.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        await_that(lambda: plane.api.has(account), 60)
        yield plane


def _services(made: Sandbox, programs: Programs) -> tuple[ControlPlane, list[Service]]:
    folder = made.folder
    etcd_port, peer_port, port = free_ports(3)
    etcd_address = f"http://127.0.0.1:{etcd_port}"
    (folder / "tokens.csv").write_text(
        "".join(f'{_token(user)},{user},{user},"{group}"\n' for user, group in _GROUPS.items())
    )
    key = folder / "service-accounts.key"
    made.must([need.program("openssl"), "genrsa", "-out", key, "2048"])
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
            {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        ],
    }
    (folder / "audit-policy.json").write_text(json.dumps(policy))
    certificates = folder / "certificates"
    etcd = Service(
        made,
        "etcd",
        [
            programs.etcd,
            f"--data-dir={folder}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={etcd_address}",
            f"--advertise-client-urls={etcd_address}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}",
            f"--initial-cluster=default=http://127.0.0.1:{peer_port}",
        ],
    )
    server = Service(
        made,
        "kube-apiserver",
        [
            programs.kubernetes["kube-apiserver"],
            f"--etcd-servers={etcd_address}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--authorization-mode=Node,RBAC",
            f"--token-auth-file={folder}/tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--cert-dir={certificates}",
            "--allow-privileged=true",
            f"--audit-policy-file={folder}/audit-policy.json",
            f"--audit-log-path={folder}/audit.log",
        ],
    )
    plane = ControlPlane(folder, f"https://127.0.0.1:{port}", server)
    common = ["--leader-elect=false", "--secure-port=0"]
    controllers = Service(
        made,
        "kube-controller-manager",
        [
            programs.kubernetes["kube-controller-manager"],
            f"--kubeconfig={plane.kubeconfig(CONTROLLERS)}",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={certificates}/apiserver.crt",
            "--use-service-account-credentials",
            *common,
        ],
    )
    scheduler = Service(
        made,
        "kube-scheduler",
        [
            programs.kubernetes["kube-scheduler"],
            f"--kubeconfig={plane.kubeconfig(SCHEDULER)}",
            *common,
        ],
    )
    return plane, [etcd, server, controllers, scheduler]


def _token(user: str) -> str:
    return f"token-of-{user.replace(':', '-')}"


def alive(service: Service) -> bool:
    """True; raises AssertionError with the end of its log if a service has ended."""
    assert service.running, f"{service.name} ended: {service.log.read_text()[-3000:]}"
    return True


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody has."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
