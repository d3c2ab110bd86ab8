"""What a process that stays keeps of its last update, so that the next one costs what it changes.

Decoding and rendering 640 shares takes 0.15 s, and comparing their files 0.05 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdi.state.ledger import Ledger
from cdi.state.specs import NodeSpecs


@dataclass(slots=True)
class Cache:
    """The last update."""

    document: bytes = b""
    """The ledger's document."""
    made: NodeSpecs | None = None
    intact: bool = False
    """Whether the files were what this update made of them when this process looked last."""

    @property
    def ledger(self) -> tuple[bytes, Ledger] | None:
        """The ledger's document and what it was read as."""
        return (self.document, self.made.ledger) if self.made else None

    def known(self, before: Ledger) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
        """Return the specs and the files of values that need not be compared, by name.

        None if the ledger on the disk, ``before``, is another one: then others wrote them.
        """
        if self.made is None or not self.intact or before is not self.made.ledger:
            return {}, {}
        return self.made.specs, self.made.values

    def keep(self, document: bytes, made: NodeSpecs) -> None:
        """Note what has been written."""
        self.document, self.made, self.intact = document, made, True
