"""An API server of our own, over real HTTP, as far as the plugin uses one.

Optimistic locking by resourceVersion (409), merge patches in which null removes, field selectors,
lists in chunks, watches with bookmarks, 410 for versions that are compacted, and a lease-like
stream of versions over all kinds, as etcd has. And faults, decided for each request by a function.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What happens to a request instead of, or besides, an answer."""

    status: int = 0
    """Answer with this and do nothing."""
    retry_after: int = 0
    delay: float = 0.0
    reset_before: bool = False
    """Break the connection without doing anything."""
    reset_after: bool = False
    """Do it, and break the connection instead of answering."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    watch: bool
    body: Any


NO_FAULT = Fault()


@dataclass
class Store:
    """Objects by kind and key, and their history."""

    objects: dict[tuple[str, str, str], Json] = field(default_factory=dict)
    version: int = 1000
    history: list[tuple[int, str, Json]] = field(default_factory=list)
    compacted: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, kind: str, document: Json, action: str) -> Json:
        with self.changed:
            self.version += 1
            document = json.loads(json.dumps(document))
            document["metadata"]["resourceVersion"] = str(self.version)
            metadata = document["metadata"]
            key = (kind, metadata.get("namespace", ""), metadata["name"])
            if action == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = document
            if kind == "pods":
                self.history.append((self.version, action, document))
            self.changed.notify_all()
            return document

    def after(self, version: int) -> list[tuple[int, str, Json]]:
        """Return what has changed since a version."""
        return self.history[bisect_right(self.history, version, key=itemgetter(0)) :]

    def compact(self) -> None:
        """Forget the history, so that watches from earlier versions get 410."""
        with self.changed:
            self.compacted = self.version
            self.history.clear()
            self.changed.notify_all()


class ApiServer:
    def __init__(self) -> None:
        self.store = Store()
        self.fault: Callable[[Request], Fault] = lambda request: NO_FAULT
        self.requests: list[tuple[float, Request, int]] = []
        self.bookmark_seconds = 0.5
        self.watch_delay = 0.0
        self.told = 0
        """The version up to which some watch has been told of changes."""
        self.streams: set[socket.socket] = set()
        self.lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            server_side = outer

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self.http = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    @property
    def kubeconfig(self) -> str:
        """The content of a file that KUBECONFIG can name."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )

    def start(self) -> ApiServer:
        self.thread.start()
        return self

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.break_watches()
        for event in self.events():
            if event["involvedObject"]["kind"] == "Pod":
                assert_for_owner(event["message"])

    def break_watches(self) -> None:
        with self.lock:
            for stream in list(self.streams):
                with suppress(OSError):
                    stream.shutdown(socket.SHUT_RDWR)

    # What a user of the cluster does

    def add_node(self, name: str, annotations: Json | None = None) -> Json:
        return self.store.put(
            "nodes",
            {"kind": "Node", "metadata": {"name": name, "annotations": annotations or {}}},
            "ADDED",
        )

    def node(self, name: str) -> Json:
        return self.store.objects[("nodes", "", name)]

    def annotations(self, node: str) -> Json:
        return self.node(node)["metadata"].get("annotations") or {}

    def annotate_node(self, name: str, annotations: Json) -> None:
        with self.store.changed:
            merged = merge(self.node(name), {"metadata": {"annotations": annotations}})
            self.store.put("nodes", merged, "MODIFIED")

    def add_pod(self, document: Json) -> Json:
        document["metadata"].setdefault("uid", str(uuid.uuid4()))
        document["metadata"].setdefault(
            "creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        )
        return self.store.put("pods", document, "ADDED")

    def pod(self, namespace: str, name: str) -> Json | None:
        return self.store.objects.get(("pods", namespace, name))

    def change_pod(self, namespace: str, name: str, patch: Json) -> Json:
        with self.store.changed:
            document = self.pod(namespace, name)
            assert document is not None
            return self.store.put("pods", merge(document, patch), "MODIFIED")

    def delete_pod(self, namespace: str, name: str) -> None:
        with self.store.changed:
            document = self.pod(namespace, name)
            assert document is not None
            self.store.put("pods", document, "DELETED")

    def pods(self) -> list[Json]:
        return [value for key, value in self.store.objects.items() if key[0] == "pods"]

    def events(self) -> list[Json]:
        return [value for key, value in self.store.objects.items() if key[0] == "events"]

    def count(self, since: int = 0) -> list[Request]:
        """Return the requests since a mark, without watches and without the registration."""
        return [
            request
            for _, request, _ in self.requests[since:]
            if not request.watch and "node-amd-register" not in json.dumps(request.body)
        ]


def assert_for_owner(message: str) -> None:
    """Check that a message to who owns a pod names no command and no option of one."""
    command = re.search(r"amd-cdi |--[a-z]|command line", message)
    assert command is None, f"{command} in {message!r}"


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


class _Handler(BaseHTTPRequestHandler):
    server_side: ApiServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        server = self.server_side
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        request = Request(self.command, url.path, query.get("watch") == "true", body)
        fault = server.fault(request)
        if fault.delay:
            time.sleep(fault.delay)
        if fault.reset_before:
            server.requests.append((time.monotonic(), request, 0))
            self._reset()
            return
        if fault.status:
            server.requests.append((time.monotonic(), request, fault.status))
            headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
            self._answer(fault.status, status(fault.status, "a fault"), headers)
            return
        if request.watch:
            server.requests.append((time.monotonic(), request, 200))
            self._watch(query)
            return
        code, answer = self._do(request, query)
        server.requests.append((time.monotonic(), request, code))
        if fault.reset_after:
            self._reset()
            return
        self._answer(code, answer, {})

    def _reset(self) -> None:
        # A zero linger makes the kernel send RST.
        self.connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
        self.close_connection = True
        self.connection.close()
        self.rfile.close()

    def _answer(self, code: int, answer: Json, headers: dict[str, str]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _do(self, request: Request, query: dict[str, str]) -> tuple[int, Json]:
        store = self.server_side.store
        parts = request.path.removeprefix("/api/v1/").split("/")
        if parts == ["pods"]:
            return self._list(query)
        namespace = ""
        if parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        kind = parts[0]
        with store.changed:
            if request.method == "POST":
                key = (kind, namespace, request.body["metadata"]["name"])
                if key in store.objects:
                    return 409, status(409, "already exists")
                return 201, store.put(kind, request.body, "ADDED")
            current = store.objects.get((kind, namespace, parts[1]))
            if current is None:
                return 404, status(404, f"{kind} {parts[1]!r} not found")
            return (
                (200, current) if request.method == "GET" else self._patch(kind, current, request)
            )

    def _patch(self, kind: str, current: Json, request: Request) -> tuple[int, Json]:
        if self.headers["Content-Type"] != "application/merge-patch+json":
            return 415, status(415, "merge patches only")
        present = current["metadata"]
        for key in ("resourceVersion", "uid"):
            wanted = (request.body.get("metadata") or {}).get(key)
            if wanted is not None and wanted != present.get(key):
                return 409, status(409, f"the object has been modified: {key}")
        merged = merge(current, request.body)
        if merged == current:
            return 200, current
        return 200, self.server_side.store.put(kind, merged, "MODIFIED")

    def _list(self, query: dict[str, str]) -> tuple[int, Json]:
        store = self.server_side.store
        with store.changed:
            found = [
                document
                for key, document in sorted(store.objects.items())
                if key[0] == "pods" and selected(document, query.get("fieldSelector", ""))
            ]
            version = str(store.version)
            compacted = store.compacted
        start = 0
        if query.get("continue"):
            start, version = query["continue"].split("@")[0], query["continue"].split("@")[1]
            start = int(start)
            if int(version) < compacted:
                return 410, status(410, "the continue token has expired")
        limit = int(query.get("limit") or 0) or len(found) or 1
        metadata = {"resourceVersion": version}
        if start + limit < len(found):
            metadata["continue"] = f"{start + limit}@{version}"
        return 200, {"kind": "PodList", "items": found[start : start + limit], "metadata": metadata}

    def _watch(self, query: dict[str, str]) -> None:
        server = self.server_side
        store = server.store
        selector = query.get("fieldSelector", "")
        seen = int(query.get("resourceVersion") or 0)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with server.lock:
            server.streams.add(self.connection)
        until = time.monotonic() + float(query.get("timeoutSeconds") or 60)
        try:
            while time.monotonic() < until:
                with store.changed:
                    if seen < store.compacted:
                        self._event("ERROR", status(410, "too old resource version"))
                        return
                    news = store.after(seen)
                    if not news:
                        store.changed.wait(server.bookmark_seconds)
                        news = store.after(seen)
                    bookmark = store.version
                for version, action, document in news:
                    if server.watch_delay:
                        time.sleep(server.watch_delay)
                    if selected(document, selector):
                        self._event(action, document)
                    seen = version
                    server.told = max(server.told, version)
                if not news and query.get("allowWatchBookmarks") == "true":
                    mark = {"kind": "Pod", "metadata": {"resourceVersion": str(bookmark)}}
                    self._event("BOOKMARK", mark)
                    seen = max(seen, bookmark)
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, ValueError):
            pass
        finally:
            with server.lock:
                server.streams.discard(self.connection)

    def _event(self, action: str, document: Json) -> None:
        data = json.dumps({"type": action, "object": document}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def selected(document: Json, selector: str) -> bool:
    for clause in filter(None, selector.split(",")):
        name, _, value = clause.partition("=")
        found: Any = document
        for part in name.split("."):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        if (found or "") != value.lstrip("="):
            return False
    return True


def status(code: int, message: str) -> Json:
    return {"kind": "Status", "code": code, "message": message, "status": "Failure"}
