"""A point in time by which something has to be done, however many steps it takes."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of the monotonic clock, in seconds."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the deadline that is so far away."""
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until then, 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    def sleep(self, seconds: float) -> bool:
        """Sleep so long; say whether there was the time."""
        if seconds >= self.left:
            return False
        time.sleep(seconds)
        return True
