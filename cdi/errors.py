"""The two kinds of error: what retrying may heal, and what it will not.

Every message says what was expected, what was found and where; the hint says what to do.
"""

from __future__ import annotations


class AmdCdiError(Exception):
    """A failure with a message for the user and a hint that says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class PermanentError(AmdCdiError):
    """Retrying will not heal it: bad input, a full GPU, a damaged file."""


class TemporaryError(AmdCdiError):
    """Retrying may heal it: a lock that is held, a disk that is full, a device that is busy."""
