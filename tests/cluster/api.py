"""An API server as a user with a token meets it: plain JSON over HTTPS."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any

Json = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"


class RefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


@dataclass(frozen=True)
class Api:
    address: str
    certificate: Path
    token: str

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate))

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer; raises RefusedError, or OSError where there is no server."""
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.token}",
                "Content-Type": f"application/{kind}",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._trust) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise RefusedError(error.code, error.read().decode()) from error

    def has(self, path: str) -> bool:
        """Whether a GET of this path is answered, and not with an error."""
        try:
            self.call("GET", path)
        except (RefusedError, OSError):
            return False
        return True

    def ready(self) -> bool:
        request = urllib.request.Request(
            f"{self.address}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=self._trust) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    # What the tests of pods and nodes need of it

    def annotations(self, node: str) -> Json:
        return self.call("GET", f"/api/v1/nodes/{node}")["metadata"].get("annotations") or {}

    def annotate_node(self, node: str, annotations: Json) -> None:
        self.call("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": annotations}})

    def pod(self, name: str) -> Json | None:
        try:
            return self.call("GET", f"{PODS}/{name}")
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def delete_pod(self, name: str, *, force: bool = False) -> None:
        options: Json = {"gracePeriodSeconds": 0} if force else {}
        self.call("DELETE", f"{PODS}/{name}", {"kind": "DeleteOptions", **options})

    def events(self, pod: str) -> list[Json]:
        """What describing a pod shows at its end."""
        selector = f"fieldSelector=involvedObject.name={pod}"
        return self.call("GET", f"/api/v1/namespaces/default/events?{selector}")["items"]
