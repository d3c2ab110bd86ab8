"""The one kind of error of the hook: the container must not start, and why."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - a refusal is the hook's verdict, not a failure of the hook
    """The container cannot be held to its share; the text is one sentence with hints."""

    def __init__(self, expected: str, found: str, hint: str = "", node_hint: str = "") -> None:
        self.fact = f"expected {expected}, found {found}"
        self.hint = hint
        """What can be changed about the container."""
        super().__init__("; ".join(filter(None, (self.fact, hint, node_hint))))

    def for_pod(self) -> str:
        """Return the text for who owns a pod, and can change nothing of the node."""
        return f"{self.fact}; {self.hint or 'place the pod on another node'}"


class DeadlineError(BaseException):
    """The hook's own time is up; no handler of ordinary errors may swallow it."""
