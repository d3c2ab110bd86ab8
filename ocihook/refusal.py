"""The one kind of error of the hook: the container must not start, and why."""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - a refusal is the hook's verdict, not a failure of the hook
    """The container cannot be held to its share; the text is one sentence with a hint."""

    def __init__(self, expected: str, found: str, hint: str) -> None:
        super().__init__(f"expected {expected}, found {found}; {hint}")


class DeadlineError(BaseException):
    """The hook's own time is up; no handler of ordinary errors may swallow it."""
