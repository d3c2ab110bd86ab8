"""The node's ledger and spec, as this process keeps them: every change goes through here."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdi.errors import AmdCdiError, TemporaryError
from cdi.node.gpu import Node
from cdi.plan.options import STRATEGIES, Options
from cdi.state import ledger as ledgers
from cdi.state import store
from cdi.state.cache import Cache
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs
from deviceplugin.log import log

ANSWER_SECONDS = 0.005
"""How long an answer takes to leave; what runs in this process meanwhile makes kubelet wait."""

WAIT_SECONDS = 0.75
"""How long others may keep the reservations: whoever waits keeps allocations waiting as well."""


@dataclass(slots=True)
class Reservations:
    """Where the reservations are, and the node they are about."""

    paths: Paths
    node: Node
    settings: Mapping[str, Any]
    """Options of the spec that this process was started with; the others stay as they are."""
    memory: Cache = field(default_factory=Cache)
    lock: threading.RLock = field(default_factory=threading.RLock)
    told: frozenset[str] = frozenset()
    """Warnings that are in the log already."""

    def read(self) -> Ledger:
        """Return the ledger as it is on the disk."""
        return ledgers.load(self.paths.state_dir, self.memory.ledger)

    def change(
        self,
        change: Callable[[Ledger], Ledger],
        seconds: float = WAIT_SECONDS,
        confirm: Callable[[NodeSpecs], None] | None = None,
    ) -> NodeSpecs:
        """Change the ledger and make the specs what it says, or change nothing.

        Nothing is changed if ``confirm``, which is asked last, raises. Waits at most ``seconds``
        for this process, and for others. Raises what ``store.update`` does.
        """
        if not self.lock.acquire(timeout=seconds):
            raise TemporaryError(
                "the reservations are being changed", "the next attempt may succeed"
            )
        try:
            made = store.update(
                self.paths,
                self.node,
                lambda before: replace(change(before), options=self._options(before.options)),
                self.memory,
                lock_seconds=seconds,
                settle=settle_behind,
                confirm=confirm,
            )
            warnings = frozenset(made.warnings)
            for warning in made.warnings:
                if warning not in self.told:
                    log.warning("%s", warning)
            self.told = warnings
            return made
        finally:
            self.lock.release()

    def refresh(self, node: Node, seconds: float = WAIT_SECONDS) -> NodeSpecs:
        """Make the spec anew from a node that has changed."""
        with self.lock:
            self.node = node
            return self.change(lambda before: before, seconds)

    def _options(self, before: Options) -> Options:
        # A GPU that kubelet was told of by name keeps it, also where its index has changed.
        wanted = {"strategies": STRATEGIES, **self.settings}
        if all(getattr(before, name) == value for name, value in wanted.items()):
            return before
        return replace(before, **wanted)


def settle_behind(task: Callable[[], None]) -> None:
    """Make renames durable without keeping kubelet waiting for it.

    The files themselves are durable by now. A power failure before the renames are leaves the
    reservations as they were; then the annotations of the pod, which were written before, bring its
    share back.
    """

    def settle() -> None:
        time.sleep(ANSWER_SECONDS)
        try:
            task()
        except AmdCdiError as error:
            log.warning("%s", error)

    try:
        # Not threading.Thread, whose start waits until the thread runs.
        _thread.start_new_thread(settle, ())
    except RuntimeError:
        # There may be no more threads, and the reservations have been changed.
        settle()
