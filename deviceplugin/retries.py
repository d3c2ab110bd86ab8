"""Small things that have to be done in the end, but that nobody waits for."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from cdi.errors import AmdCdiError
from deviceplugin.log import log

FIRST_SECONDS, LONGEST_SECONDS = 0.2, 15.0

MOST = 10_000
"""Tasks that wait at most, so that a long outage does not fill memory."""


class Retries:
    """A thread that tries each task until it works or its time is over."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, _Pending]] = []
        self._order = itertools.count()
        self._busy = False

    def add(self, what: str, task: Callable[[], None], seconds: float) -> None:
        """Run a task soon, and again while it raises AmdCdiError, for so many seconds."""
        pending = _Pending(what, task, time.monotonic() + seconds, FIRST_SECONDS)
        with self._changed:
            if len(self._waiting) >= MOST:
                log.warning("given up, as too much waits to be done: %s", what)
                return
            heapq.heappush(self._waiting, (time.monotonic(), next(self._order), pending))
            self._changed.notify_all()

    def wait_until_done(self, seconds: float) -> bool:
        """Wait until nothing is left to do, at most so long; say whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, seconds)

    def run(self) -> None:
        """Run what is due, for ever."""
        while True:
            with self._changed:
                while not self._waiting or self._waiting[0][0] > time.monotonic():
                    due = self._waiting[0][0] - time.monotonic() if self._waiting else None
                    self._changed.wait(due)
                _, _, pending = heapq.heappop(self._waiting)
                self._busy = True
            again = pending.attempt()
            with self._changed:
                self._busy = False
                if again:
                    due = time.monotonic() + pending.pause
                    pending.pause = min(2 * pending.pause, LONGEST_SECONDS)
                    heapq.heappush(self._waiting, (due, next(self._order), pending))
                self._changed.notify_all()


class _Pending:
    def __init__(self, what: str, task: Callable[[], None], until: float, pause: float) -> None:
        self.what = what
        self.task = task
        self.until = until
        self.pause = pause

    def attempt(self) -> bool:
        """Run the task; say whether it has to be run again."""
        try:
            self.task()
        except AmdCdiError as error:
            if time.monotonic() + self.pause < self.until:
                return True
            log.warning("given up: %s: %s", self.what, error)
        except Exception as error:  # noqa: BLE001 -- the others still have to be run
            log.error("unexpected %s: %s: %s", type(error).__name__, self.what, error)
        return False
