"""Kubelet's side of life: its directory, its socket, its restarts.

When kubelet starts it empties the directory and makes its socket anew. What is compared is what
lies in the directory, and events of inotify only say when to look: none is missed that matters.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from inotify_simple import INotify, flags

from cdi.errors import AmdCdiError
from cdi.files import make_directory, os_error
from deviceplugin.log import log
from deviceplugin.service import Backend, handler, register

SOCKET = "kubelet.sock"

REGISTER_SECONDS = 5.0
RETRY_SECONDS = 0.2
LOOK_SECONDS = 30.0
"""How long events may stay away before the directory is looked at all the same."""

ANSWER_SECONDS = 10.0
"""How long a call may keep this process from stopping: what Allocate takes at most."""

WATCHED = flags.CREATE | flags.MOVED_TO | flags.DELETE

WORKERS = 8
"""Calls that are served at once: kubelet makes one at a time, besides its streams."""

Identity = tuple[int, int]


@dataclass(slots=True)
class Endpoint:
    """The service of one resource on its socket."""

    resource: str
    backend: Backend
    directory: Path
    server: grpc.Server | None = None
    identity: Identity | None = None
    """The socket that is served."""
    kubelet: Identity | None = None
    """The socket of the kubelet that knows of it."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set when the streams of the server shall end."""
    told: str | None = ""
    """Why it could not be registered, as the log has it."""

    @property
    def socket(self) -> Path:
        """Return the path of the socket, which is the same in every life of the plugin."""
        return self.directory / f"amd-cdi-{self.resource.partition('/')[2]}.sock"

    def serve(self) -> None:
        """Serve anew on the socket."""
        self.stop()
        self.ended = threading.Event()
        server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix=self.resource),
            handlers=[handler(self.backend, self.ended.is_set)],
            options=[("grpc.so_reuseport", 0)],
        )
        try:
            self.socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{self.socket}")
        except (OSError, RuntimeError) as error:
            raise os_error("serve on", self.socket, OSError(str(error))) from error
        server.start()
        self.server = server
        self.identity = identity(self.socket)

    def stop(self, seconds: float = 0.0) -> None:
        """End the service and its streams; calls that have begun may take so long."""
        if self.server is not None:
            self.ended.set()
            stopped = self.server.stop(seconds or None)
            self.backend.wake()
            stopped.wait()
            self.server = None
        self.identity = self.kubelet = None


class Kubelet:
    """Keeps resources registered with whichever kubelet there is."""

    def __init__(self, directory: Path, backend_of: Callable[[str], Backend]) -> None:
        self._directory = directory
        self._backend_of = backend_of
        self._endpoints: dict[str, Endpoint] = {}
        self._lock = threading.Lock()
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = False
        self._told = ""

    def offer(self, resources: frozenset[str]) -> None:
        """Serve these resources besides those that are served already."""
        with self._lock:
            for resource in resources - self._endpoints.keys():
                backend = self._backend_of(resource)
                self._endpoints[resource] = Endpoint(resource, backend, self._directory)
        os.eventfd_write(self._waker, 1)

    def stop(self) -> None:
        """Let ``run`` end."""
        self._stopping = True
        os.eventfd_write(self._waker, 1)

    def run(self) -> None:
        """Serve and register until stopped."""
        with INotify(inheritable=False, nonblocking=True) as events:
            poll = select.poll()
            poll.register(events.fileno(), select.POLLIN)
            poll.register(self._waker, select.POLLIN)
            while not self._stopping:
                registered = self._watch(events) and self._register()
                poll.poll((LOOK_SECONDS if registered else RETRY_SECONDS) * 1000)
                events.read(timeout=0)
                try:
                    os.eventfd_read(self._waker)
                except BlockingIOError:
                    continue
        for endpoint in self._endpoints.values():
            # What kubelet is not told of is a pod that fails, and a lock that nobody releases.
            endpoint.stop(ANSWER_SECONDS)

    def _watch(self, events: INotify) -> bool:
        """Watch the directory; say whether it could be done.

        Again each time, as the directory may have been made anew; otherwise it does nothing. Our
        own socket keeps a removed directory alive, so only its parent tells of that.
        """
        try:
            make_directory(self._directory)
            events.add_watch(self._directory.parent, WATCHED)
            events.add_watch(self._directory, WATCHED)
        except (AmdCdiError, OSError) as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("kubelet's directory %s cannot be watched: %s", self._directory, error)
            return False
        return True

    def _register(self) -> bool:
        """Make every resource served and registered; say whether that is so now."""
        kubelet_socket = self._directory / SOCKET
        kubelet = identity(kubelet_socket)
        if kubelet is None:
            return True
        with self._lock:
            endpoints = list(self._endpoints.values())
        registered = True
        for endpoint in endpoints:
            served = endpoint.identity is not None and identity(endpoint.socket) == (
                endpoint.identity
            )
            if served and endpoint.kubelet == kubelet:
                continue
            began = time.monotonic()
            try:
                if not served or endpoint.kubelet is not None:
                    # Streams of a kubelet that is gone end with the server they came to.
                    endpoint.serve()
                register(
                    str(kubelet_socket), endpoint.socket.name, endpoint.resource, REGISTER_SECONDS
                )
            except Exception as error:  # noqa: BLE001 -- whatever it was, it is tried again
                reason = error.details() if isinstance(error, grpc.RpcError) else str(error)
                if reason != endpoint.told:
                    log.warning("kubelet does not take %s yet: %s", endpoint.resource, reason)
                endpoint.told = reason
                registered = False
                continue
            endpoint.kubelet = kubelet
            endpoint.told = ""
            took = time.monotonic() - began
            log.info("registered %s with kubelet in %.0f ms", endpoint.resource, took * 1000)
        return registered


def identity(path: Path) -> Identity | None:
    """Return what tells a socket from one made later at the same place; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
