"""The hook's one line: to standard error for the user, to a log for the administrator.

crun throws a hook's output away, so the log is the only place that always tells the reason.
"""

from __future__ import annotations

import os
import time

FOLDER = "var/log/amd-cdi"
FILE = "hook.log"
JOURNAL = "run/systemd/journal/socket"
MAX_BYTES = 1024 * 1024
"""Size from which on the log starts anew; the one before it is kept as ``hook.log.1``."""

MAX_LINE = 4000
"""Below PIPE_BUF, so that lines of concurrent hooks do not mix in a pipe either."""

MAX_ID = 128

ERROR, INFO = 3, 6
"""Priorities of syslog(3)."""


def line(container: str, text: str) -> str:
    """Return the hook's one line for a container's id and a text."""
    return clean(f"amd-oci-hook: container {clean(container, MAX_ID)}: {text}", MAX_LINE)


def clean(text: str, limit: int) -> str:
    """Return a text as printable ASCII of at most ``limit`` characters."""
    printable = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return printable.encode("ascii", "backslashreplace").decode("ascii")[:limit]


def tell(text: str) -> None:
    """Write a line to standard error; a closed one is no reason for another error."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass


def record(text: str, container: str, priority: int, sysroot: str) -> None:
    """Append a line to the log file, or send it to the journal where there is no such file."""
    try:
        _append(f"{sysroot}/{FOLDER}", text)
    except OSError:
        _send(f"{sysroot}/{JOURNAL}", text, container, priority)


def _append(folder: str, text: str) -> None:
    path = f"{folder}/{FILE}"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o640)
    except FileNotFoundError:
        try:
            os.mkdir(folder, 0o750)
        except FileExistsError:
            pass
        descriptor = os.open(path, flags, 0o640)
    try:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        os.write(descriptor, f"{stamp} {text}\n".encode())
        if os.fstat(descriptor).st_size > MAX_BYTES and os.stat(path).st_size > MAX_BYTES:
            os.rename(path, f"{path}.1")
    finally:
        os.close(descriptor)


def _send(path: str, text: str, container: str, priority: int) -> None:
    """Send a record in the journal's native protocol: fields as lines of one datagram."""
    import socket

    fields = (
        f"MESSAGE={text}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=amd-oci-hook\n"
        f"CONTAINER_ID_FULL={clean(container, MAX_ID)}\n"
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
            journal.settimeout(0)
            journal.sendto(fields.encode(), path)
    except OSError:
        pass
