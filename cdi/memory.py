"""What a process that stays keeps of its updates, so that one more share costs one share.

Nothing but what was derived from shares, nodes and options, which are compared before it is used
again. The ledger's bytes and other specs are looked at each time, and the shares' values when their
directory has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdi import cdiversion, rules, spec, spectext
from cdi.edits import Device, Spec
from cdi.errors import PermanentError
from cdi.ledger import Ledger
from cdi.share import Share


@dataclass(frozen=True, slots=True)
class Piece:
    """A device as it stands in the file."""

    device: Device
    text: bytes
    version: str
    """Lowest version of the CDI specification that it needs."""


@dataclass(slots=True)
class Memory:
    """Texts by name, and what they were made of."""

    ledger: tuple[bytes, Ledger] | None = None
    """The ledger's document and what it was read as."""
    lines: dict[str, tuple[Share, str]] = field(default_factory=dict)
    """The lines of the ledger's document."""
    basis: object = None
    """What ``offers`` were made from, besides their shares."""
    offers: spec.Offers = field(default_factory=spec.Offers)
    format: str = ""
    pieces: dict[str, Piece] = field(default_factory=dict)
    values: dict[str, spec.Held | None] = field(default_factory=dict)
    """The shares whose values this process wrote or compared; None for what needs or has none."""
    stamp: int = 0
    """When the directory of values was changed last, in ns: at another time it is read anew."""

    def offers_for(self, basis: object) -> spec.Offers:
        """Return the offers that were made from this basis, and shall be."""
        if basis != self.basis:
            self.offers = spec.Offers()
            self.basis = basis
        return self.offers

    def forget(self, living: set[str]) -> None:
        """Drop what was kept of shares that are gone."""
        for kept in (self.lines, self.offers.shares, self.values):
            for name in kept.keys() - living:
                del kept[name]

    def assemble(self, devices: Iterable[Device], form: str) -> tuple[Spec, bytes]:
        """Return the spec of these devices and its text; only new ones are checked and written out.

        Raises PermanentError if a runtime would refuse the spec.
        """
        assembled = spec.assemble(())
        assembled["devices"] += devices
        known = self.pieces if form == self.format else {}
        names = [device["name"] for device in assembled["devices"]]
        new = [
            device
            for name, device in zip(names, assembled["devices"], strict=True)
            if (piece := known.get(name)) is None
            or (piece.device is not device and piece.device != device)
        ]
        made = {device["name"]: _piece(device, form) for device in new}
        pieces = {name: made.get(name) or known[name] for name in names}
        versions = {piece.version for piece in pieces.values()} | {assembled["cdiVersion"]}
        assembled["cdiVersion"] = max(versions, key=cdiversion.KNOWN.index)
        if len(pieces) < len(names):
            new = assembled["devices"]
        for finding in rules.findings({**assembled, "devices": new or assembled["devices"][:1]}):
            raise PermanentError(f"no runtime would load the spec: {finding}", "check the options")
        self.format, self.pieces = form, pieces
        return assembled, spectext.join(assembled, [piece.text for piece in pieces.values()], form)


def _piece(device: Device, form: str) -> Piece:
    version, _ = cdiversion.needed({"devices": [device]})
    return Piece(device, spectext.item(device, form), version)
