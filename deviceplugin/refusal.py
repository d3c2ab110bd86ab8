"""What is said to who owns a pod: what they can change, and no command that runs on the node.

Whatever kubelet is answered with ends up in a pod's status and in its events. Errors that are made
for a pod are a ``Refusal`` and say by themselves what its owner can do. The others come from where
nobody knows whether a pod or a person at a command line asks, so their own hint is for the log.
"""

from __future__ import annotations

from cdi.errors import AmdCdiError, PermanentError, TemporaryError
from cdi.plan.planner import NoRoomError

ELSEWHERE = "place the pod on another node"


class Refusal(PermanentError):  # noqa: N818 -- it is the answer that was meant
    """A pod does not get what it asks for; the hint is for its owner."""


def told(error: AmdCdiError) -> str:
    """Return an error as the owner of a pod reads it."""
    return f"{error.message}; {_hint(error)}"


def _hint(error: AmdCdiError) -> str:
    if isinstance(error, Refusal):
        return error.hint
    if isinstance(error, NoRoomError):
        return _less(error)
    if isinstance(error, TemporaryError):
        return "create the pod anew"
    return f"{ELSEWHERE}, and tell who runs this one"


def _less(error: NoRoomError) -> str:
    if not error.most:
        return ELSEWHERE
    if error.memory:
        most = f"{error.most >> 20} MiB by amd.com/gpumem"
    else:
        # HAMi rounds a percentage down to CUs, and those up to whole atoms, of which most is one.
        most = f"{(100 * (error.most + 1) - 1) // error.total} % by amd.com/gpucores"
    return f"ask for at most {most}, or {ELSEWHERE}"
