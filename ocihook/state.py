"""The OCI state that the runtime writes to a hook's standard input.

runc, crun and docker differ in what they add or leave out (crun a ``root``, docker has no
``annotations``); the hook needs three keys that all of them give, and ``status`` to see that the
container's own code does not run yet.
"""

from __future__ import annotations

from ocihook import jsontext
from ocihook.refusal import Refusal

LIMIT = 4 * 1024 * 1024
HINT = "the hook belongs to the stages prestart and createRuntime of an OCI runtime"


class State:
    """Which container it is, and where its process and its bundle are."""

    __slots__ = ("bundle", "id", "pid")

    def __init__(self, name: str, pid: int, bundle: str) -> None:
        self.id = name
        self.pid = pid
        """Process id of the container's first process, in the hook's PID namespace."""
        self.bundle = bundle
        """Absolute path of the folder with ``config.json``."""


def parse(data: bytes) -> State:
    """Return the state of a JSON text; raises Refusal where a needed key is missing or wrong."""
    state = jsontext.parse(data, "the OCI state on standard input")
    if not isinstance(state, dict):
        raise Refusal(
            "an object as OCI state on standard input", jsontext.kind_of(state), node_hint=HINT
        )
    name = state.get("id")
    pid = state.get("pid")
    bundle = state.get("bundle")
    status = state.get("status")
    if not isinstance(name, str) or not name:
        raise Refusal("an id in the OCI state", repr(name)[:80], node_hint=HINT)
    if type(pid) is not int or not 0 < pid < 2**31:
        raise Refusal("a pid above 0 in the OCI state", repr(pid)[:80], node_hint=HINT)
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise Refusal("an absolute bundle in the OCI state", repr(bundle)[:80], node_hint=HINT)
    if status not in {"creating", "created"}:
        raise Refusal(
            "status creating or created in the OCI state", repr(status)[:80], node_hint=HINT
        )
    return State(name, pid, bundle)
