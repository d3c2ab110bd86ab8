"""The Kubernetes API: the edge where requests, retries and lost replies are dealt with.

The client's machinery for configuration, authentication and TLS is used with plain paths and plain
JSON: its models would cost more memory than all else in this process.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import load_incluster_config, load_kube_config

from cdi.errors import PermanentError, TemporaryError
from deviceplugin.deadline import Deadline

T = TypeVar("T")

Json = dict[str, Any]
Annotations = Mapping[str, str | None]
"""Annotations to set, and with None to remove."""

REPLY_SECONDS = 3.0
"""How long one reply may take. The server itself gives up on a slow request much later."""

PAGE = 250
"""Pods in one page of a list."""

WATCH_SECONDS = 300
"""How long one watch lasts; a quiet one that has died unnoticed is found out by then."""

MAX_LINE = 8 << 20
"""Bytes of one event of a watch: several times what the server lets an object have."""

HEALING = frozenset({0, 408, 429, 500, 502, 503, 504})
"""Answers that another attempt may change; 0 stands for none."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


class ApiError(TemporaryError):
    """The server refused, or did not answer (status 0)."""

    def __init__(self, message: str, status: int, wait_seconds: float = 0.0) -> None:
        super().__init__(message, "see whether the API server can be reached and what it allows")
        self.status = status
        self.wait_seconds = wait_seconds
        """What the server asked to wait before the next attempt."""


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    items: tuple[Json, ...]
    resource_version: str
    token: str
    """What the next page is asked for by; empty on the last."""


def connect() -> Cluster | None:
    """Return the cluster that KUBECONFIG names, or that this process runs in; None without one.

    Raises PermanentError if there is one and its configuration cannot be used.
    """
    configuration = Configuration()
    try:
        if os.environ.get("KUBECONFIG"):
            load_kube_config(  # type: ignore[no-untyped-call]
                os.environ["KUBECONFIG"], client_configuration=configuration
            )
        elif SERVICE_ACCOUNT.exists():
            load_incluster_config(  # type: ignore[no-untyped-call]
                client_configuration=configuration
            )
        else:
            return None
    except Exception as error:
        raise PermanentError(
            f"the configuration of the Kubernetes client cannot be used: {error}",
            "correct KUBECONFIG or the pod's service account",
        ) from error
    # Attempts are counted against one deadline here, and not once more in each request.
    configuration.retries = False
    configuration.connection_pool_maxsize = 4
    return Cluster(ApiClient(configuration))


class Cluster:
    """Requests to one API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def node(self, name: str, deadline: Deadline) -> Json:
        """Return a node."""
        return persist(lambda: self._json("GET", f"/api/v1/nodes/{name}", deadline), deadline)

    def patch_node(
        self,
        name: str,
        annotations: Annotations,
        deadline: Deadline,
        resource_version: str | None = None,
    ) -> Json:
        """Change annotations of a node, if given a version only while it is at that.

        One attempt: with a version, the answer to another would not tell what became of this one.
        """
        metadata: Json = {"annotations": dict(annotations)}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        return self._json("PATCH", f"/api/v1/nodes/{name}", deadline, {"metadata": metadata})

    def pod(self, namespace: str, name: str, deadline: Deadline) -> Json | None:
        """Return a pod, None if there is none."""
        return self._found(f"/api/v1/namespaces/{namespace}/pods/{name}", deadline)

    def patch_pod(  # noqa: PLR0913, PLR0917 -- which one, and what of it
        self,
        namespace: str,
        name: str,
        uid: str,
        annotations: Annotations,
        deadline: Deadline,
        resource_version: int | None = None,
    ) -> Json:
        """Change annotations of a pod, and never those of a later pod of the same name.

        The same patch twice is as good as once, so that it is tried again when a reply is lost. If
        given a version, the pod is changed only while it is at that; then ApiError 409 may mean
        that an earlier attempt has changed it.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        metadata: Json = {"uid": uid, "annotations": dict(annotations)}
        if resource_version is not None:
            metadata["resourceVersion"] = str(resource_version)
        body = {"metadata": metadata}
        return persist(lambda: self._json("PATCH", path, deadline, body), deadline)

    def list_pods(self, node: str, token: str, deadline: Deadline) -> Page:
        """Return a page of the pods of a node; raises ApiError 410 when the token has expired."""
        query = [("fieldSelector", f"spec.nodeName={node}"), ("limit", str(PAGE))]
        if token:
            query.append(("continue", token))
        answer = self._json("GET", "/api/v1/pods", deadline, query=query)
        metadata = answer.get("metadata") or {}
        return Page(
            tuple(answer.get("items") or ()),
            metadata.get("resourceVersion") or "",
            metadata.get("continue") or "",
        )

    @contextmanager
    def watch_pods(self, node: str, resource_version: str) -> Iterator[Iterator[Json]]:
        """Yield the events of a node's pods from a version on, bookmarks included.

        Raises ApiError 410 when the version has expired, and 0 when the connection breaks.
        """
        query = [
            ("fieldSelector", f"spec.nodeName={node}"),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(WATCH_SECONDS)),
            ("resourceVersion", resource_version),
        ]
        what = f"watch the pods of {node}"
        timeout = (REPLY_SECONDS, WATCH_SECONDS + 10.0)
        with _told(what):
            response = self._send("GET", "/api/v1/pods", query, None, timeout).response
        try:
            if response.status != HTTPStatus.OK:
                raise _refusal(what, response.status, response.read(), response.headers)
            yield self._events(what, response)
        finally:
            response.close()
            response.release_conn()

    def create_event(self, namespace: str, event: Json, deadline: Deadline) -> None:
        """Write an event."""
        path = f"/api/v1/namespaces/{namespace}/events"
        try:
            persist(lambda: self._json("POST", path, deadline, event), deadline)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def daemon_set(self, namespace: str, name: str, deadline: Deadline) -> Json | None:
        """Return a DaemonSet, None if there is none."""
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
        return self._found(path, deadline)

    def patch_daemon_set(self, namespace: str, name: str, patch: Json, deadline: Deadline) -> Json:
        """Change a DaemonSet; the same patch twice is as good as once."""
        path = f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}"
        return persist(lambda: self._json("PATCH", path, deadline, patch), deadline)

    def _found(self, path: str, deadline: Deadline) -> Json | None:
        """Return what there is at a path, None if there is nothing."""
        try:
            return persist(lambda: self._json("GET", path, deadline), deadline)
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    @staticmethod
    def _events(what: str, response: urllib3.HTTPResponse) -> Iterator[Json]:
        with _told(what):
            rest = b""
            for chunk in response.stream(amt=None, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
                if len(rest) > MAX_LINE:
                    raise ApiError(f"cannot {what}: an event of over {MAX_LINE >> 20} MiB", 0)

    def _json(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        body: Json | None = None,
        query: list[tuple[str, str]] | None = None,
    ) -> Json:
        what = f"{method} {path}"
        if not deadline.left:
            raise ApiError(f"cannot {what}: no time is left", 0)
        with _told(what):
            response = self._send(method, path, query, body, min(REPLY_SECONDS, deadline.left))
            data = response.read()
            if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                raise _refusal(what, response.status, data, response.headers)
            answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ApiError(f"cannot {what}: an object was expected as answer", 0)
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]] | None,
        body: Json | None,
        timeout: float | tuple[float, float],
    ) -> Any:
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = {
            **self._client.default_headers,
            "Accept": "application/json",
            "Content-Type": f"application/{kind}",
        }
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        return self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers, body, _request_timeout=timeout
        )


def persist(attempt: Callable[[], T], deadline: Deadline) -> T:
    """Return what an attempt returns, trying again while that may help and there is time."""
    delay = 0.05
    while True:
        try:
            return attempt()
        except ApiError as error:
            if error.status not in HEALING:
                raise
            pause = max(error.wait_seconds, delay * random.uniform(0.75, 1.25))  # noqa: S311
            if not deadline.sleep(pause):
                raise
            delay = min(2 * delay, 1.0)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn whatever the client raises into an ApiError."""
    try:
        yield
    except ApiException as error:
        raise _refusal(what, error.status or 0, str(error.body or error.reason), {}) from error
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiError(f"cannot {what}: {_reason(error)}", 0) from error
    except ValueError as error:
        raise ApiError(f"cannot {what}: the answer is not JSON: {error}", 0) from error


def _refusal(
    what: str, status: int, data: bytes | str, headers: Mapping[str, str] | None
) -> ApiError:
    try:
        reason = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else "no reason"
    wait = (headers or {}).get("Retry-After", "")
    seconds = min(float(wait), 3600.0) if wait.isascii() and wait.isdecimal() else 0.0
    return ApiError(f"cannot {what}: {status} {reason[:300]}", status, seconds)


def _reason(error: BaseException) -> str:
    """Return what went wrong, which urllib3 packs into several errors."""
    inner = error
    while inner.args and isinstance(inner.args[-1], BaseException):
        inner = inner.args[-1]
    return " ".join(str(inner).split())[:300] or type(inner).__name__
