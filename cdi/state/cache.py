"""What a process that stays keeps of its updates, so that one more share costs one share.

Nothing but what was derived from shares, nodes and options, which are compared before it is used
again. The spec of the GPUs and other specs are looked at each time, the ledger and the files of
shares when they or their directories have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdi.errors import PermanentError
from cdi.files import Spares
from cdi.plan.share import Share
from cdi.spec import cdiversion, renderer, rules, spectext
from cdi.spec.edits import Device, Spec
from cdi.state.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Piece:
    """A device as it stands in the file."""

    device: Device
    text: bytes
    version: str
    """Lowest version of the CDI specification that it needs."""


@dataclass(slots=True)
class Cache:
    """Texts by name, and what they were made of."""

    ledger: tuple[bytes, Ledger] | None = None
    """The ledger's document and what it was read as."""
    lines: dict[str, tuple[Share, str]] = field(default_factory=dict)
    """The lines of the ledger's document."""
    basis: object = None
    """What ``offers`` were made from, besides their shares."""
    offers: renderer.Offers = field(default_factory=renderer.Offers)
    format: str = ""
    devices: tuple[Device, ...] = ()
    """Those of the spec of the GPUs."""
    text: bytes = b""
    """Its text."""
    pieces: dict[str, Piece] = field(default_factory=dict)
    """The parts of its text, by device."""
    written: frozenset[renderer.Offer] = frozenset()
    """Those whose files this process wrote or compared."""
    living: frozenset[str] = frozenset()
    """The shares that there were, offered or not."""
    spares: Spares = field(default_factory=Spares)
    listed: tuple[tuple[int, ...], frozenset[str]] = ((), frozenset())
    """What lay in the spec directory, and the stamps that there were when it was listed."""
    stamps: tuple[int, ...] = ()
    """When the ledger and the directories of the shares' files were changed last, in ns: at other
    times they are read anew."""

    def offers_for(self, basis: object) -> renderer.Offers:
        """Return the offers that were made from this basis, and shall be."""
        if basis != self.basis:
            self.offers = renderer.Offers()
            self.basis = basis
        return self.offers

    def listed_at(self, stamps: tuple[int, ...]) -> frozenset[str] | None:
        """Return what lies in the spec directory, if it was listed with these stamps."""
        then, names = self.listed
        return names if then == stamps else None

    def keep(self, offers: Iterable[renderer.Offer], living: frozenset[str]) -> None:
        """Remember the files of these, and drop what was kept of shares that are gone."""
        self.written = frozenset(offers)
        gone, self.living = self.living - living, living
        if gone:
            self.forget()

    def forget(self) -> None:
        """Drop what was kept of shares that are gone, or never came as their update failed."""
        for kept in (self.lines, self.offers.shares):
            for name in kept.keys() - self.living:
                del kept[name]

    def text_of(self, devices: tuple[Device, ...], form: str) -> bytes:
        """Return the spec of these devices; only new ones are checked and written out.

        Raises PermanentError if a runtime would refuse it.
        """
        if (form, devices) == (self.format, self.devices):
            return self.text
        known = self.pieces if form == self.format else {}
        names = [device["name"] for device in devices]
        new = [
            device
            for name, device in zip(names, devices, strict=True)
            if (piece := known.get(name)) is None
            or (piece.device is not device and piece.device != device)
        ]
        made = {device["name"]: _piece(device, form) for device in new}
        pieces = {name: made.get(name) or known[name] for name in names}
        assembled = renderer.assemble(())
        versions = {piece.version for piece in pieces.values()} | {assembled["cdiVersion"]}
        assembled["cdiVersion"] = max(versions, key=cdiversion.KNOWN.index)
        if len(pieces) < len(names):
            new = list(devices)
        _require_valid({**assembled, "devices": new or list(devices[:1])})
        text = spectext.join(assembled, [piece.text for piece in pieces.values()], form)
        self.format, self.devices, self.text, self.pieces = form, devices, text, pieces
        return text


def alone(device: Device, form: str) -> bytes:
    """Return a spec of nothing but this device; raises PermanentError if a runtime refuses it."""
    made = renderer.assemble((device,))
    _require_valid(made)
    return spectext.encode(made, form)


def _require_valid(made: Spec) -> None:
    """Raise PermanentError if a runtime would refuse the spec."""
    for finding in rules.findings(made):
        raise PermanentError(f"no runtime would load the spec: {finding}", "check the options")


def _piece(device: Device, form: str) -> Piece:
    version, _ = cdiversion.needed({"devices": [device]})
    return Piece(device, spectext.item(device, form), version)
