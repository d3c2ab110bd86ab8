"""The node's ledger and spec, as this process keeps them: every change goes through here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cdi.errors import AmdCdiError, TemporaryError
from cdi.files import holds
from cdi.node.gpu import Node
from cdi.plan.options import STRATEGIES, Options
from cdi.state import ledger as ledgers
from cdi.state import store
from cdi.state.cache import Cache
from cdi.state.ledger import Ledger
from cdi.state.paths import Paths
from cdi.state.specs import NodeSpecs
from cdi.state.watch import file_signatures
from deviceplugin.log import log, some

WAIT_SECONDS = 0.75
"""How long others may keep the reservations: whoever waits keeps allocations waiting as well."""


@dataclass(slots=True)
class Reservations:
    """Where the reservations are, and the node they are about."""

    paths: Paths
    node: Node
    settings: Mapping[str, Any]
    """Options of the spec that this process was started with; the others stay as they are."""
    cache: Cache = field(default_factory=Cache)
    lock: threading.RLock = field(default_factory=threading.RLock)
    seen: Mapping[str, object] = field(default_factory=dict)
    """The signatures of files when they were looked at last."""
    told: frozenset[str] = frozenset()
    """Warnings that are in the log already."""

    def read(self) -> Ledger:
        """Return the ledger as it is on the disk."""
        return ledgers.load(self.paths.state_dir, self.cache.ledger)

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
                self.cache,
                lock_seconds=seconds,
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
            # Somebody may have changed a file.
            self.cache.intact = False
            return self.change(lambda before: before, seconds)

    def put_right(self, seconds: float = WAIT_SECONDS) -> None:
        """Make the files anew if others have changed one of them since this was done last."""
        found = file_signatures(self.paths)
        with self.lock:
            wrong = [
                path
                for path, data in self._files().items()
                if found.get(str(path)) != self.seen.get(str(path), "never")
                and not _holds(path, data)
            ]
            if wrong:
                log.warning("changed by others, and made anew: %s", some(map(str, wrong)))
                self.refresh(self.node, seconds)
        self.seen = found

    def _files(self) -> dict[Path, bytes]:
        """Return the specs and the files of values as they were written last."""
        made = self.cache.made
        if made is None:
            return {}
        specs = {self.paths.spec_dir / name: data for name, data in made.specs.items()}
        return specs | {self.paths.values_dir / name: data for name, data in made.values.items()}

    def _options(self, before: Options) -> Options:
        # A GPU that kubelet was told of by name keeps it, also where its index has changed.
        wanted = {"strategies": STRATEGIES, **self.settings}
        if all(getattr(before, name) == value for name, value in wanted.items()):
            return before
        return replace(before, **wanted)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return holds(path, data)
    except (OSError, AmdCdiError):
        return False
