"""The shares that live on this node, and the options their spec is rendered with.

One JSON document, ``ledger.json`` in the state directory, with a line for each share. It is read
whole and replaced whole; the one before stays beside it as ``ledger.json.previous``.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from cdi import cumask
from cdi.errors import PermanentError
from cdi.files import os_error, read_bounded
from cdi.plan import names
from cdi.plan.options import Options
from cdi.plan.share import Share, Slice

T = TypeVar("T")

FILE = "ledger.json"
VERSION = 1
"""Of the document; a later one is not read, as it may hold shares this version cannot see."""

KEPT_LINES = 2048
"""Shares whose lines a process that stays has ready: writing out 640 takes 3 ms."""

COMPACT = json.JSONEncoder(separators=(",", ":"))
ALL = "all"
"""Stands for the CUs of a slice that is all of a GPU whose CUs are not known."""

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, PermanentError)
"""What reading a document raises that is not a ledger."""

WORDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number"}
"""What JSON calls the types."""

MAX_BYTES = 64 << 20
"""Far above what 5,000 shares take (about 1 MiB)."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of the node side."""

    shares: tuple[Share, ...] = ()
    """In order of name; no two have the same."""
    options: Options = field(default_factory=Options)

    def with_share(self, share: Share) -> Ledger:
        """Return the ledger with one more share, whose name is a new one."""
        place = self._place(share.name)
        return Ledger((*self.shares[:place], share, *self.shares[place:]), self.options)

    def share(self, name: str) -> Share | None:
        """Return the share of this name, None if there is none."""
        found = self.shares[(place := self._place(name)) : place + 1]
        return found[0] if found and found[0].name == name else None

    def of_prefix(self, prefix: str) -> tuple[Share, ...]:
        """Return the shares whose names begin so."""
        place = self._place(prefix)
        return tuple(takewhile(lambda share: share.name.startswith(prefix), self.shares[place:]))

    def of_pods(self) -> Ledger:
        """Return the ledger without the shares that were made by command."""
        return Ledger(tuple(one for one in self.shares if names.is_of_pod(one.name)), self.options)

    def _place(self, name: str) -> int:
        """Return where a share of this name stands, or would."""
        return bisect_left(self.shares, name, key=attrgetter("name"))

    def without_share(self, name: str) -> Ledger:
        """Return the ledger without the share of this name.

        Raises PermanentError if there is none.
        """
        if not any(share.name == name for share in self.shares):
            raise PermanentError(f"there is no share {name!r}", "see: amd-cdi share list")
        return Ledger(tuple(share for share in self.shares if share.name != name), self.options)


def path_in(state_dir: Path) -> Path:
    """Return where the ledger of a state directory lies."""
    return state_dir / FILE


def load(state_dir: Path, known: tuple[bytes, Ledger] | None = None) -> Ledger:
    """Return the ledger of a state directory, an empty one if there is none yet.

    ``known`` is a document and its ledger: the same document need not be decoded again.
    Raises PermanentError if it is damaged, and never takes a damaged one for an empty one: its
    shares' containers may be running.
    """
    path = path_in(state_dir)
    try:
        data = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        # Somebody removed it, and nobody else gives shares to pods.
        return known[1].of_pods() if known else Ledger()
    except OSError as error:
        raise os_error("read the ledger", path, error) from error
    if known is not None and data == known[0]:
        return known[1]
    try:
        return decode(data)
    except MALFORMED as error:
        raise PermanentError(
            f"the ledger {path} is damaged: {error}",
            f"{_restoring(path)}; if no container with a share runs, it can be moved away instead",
        ) from error


def _restoring(path: Path) -> str:
    previous = path.with_name(f"{path.name}.previous")
    if previous.exists():
        return (
            f"restore it with: cp {previous} {path}; "
            "that is without the last change, which has to be made again"
        )
    return f"there is no {previous.name} to restore it from: put back a copy of your own"


def encode(ledger: Ledger) -> bytes:
    """Return the document of a ledger: the same bytes for the same ledger."""
    shares = ",\n".join([_line(share) for share in ledger.shares])
    options = COMPACT.encode(asdict(ledger.options))
    return (f'{{"version":{VERSION},\n"options":{options},\n"shares":[\n{shares}\n]}}\n').encode()


def decode(data: bytes) -> Ledger:
    """Return the ledger of a document.

    Raises one of MALFORMED if it is not one.
    """
    document = json.loads(data)
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version {VERSION} was expected, found {str(version)[:80]!r}")
    shares = tuple(_share(entry) for entry in _typed(document["shares"], list))
    if len({share.name for share in shares}) < len(shares):
        raise ValueError("two shares have the same name")
    return Ledger(
        tuple(sorted(shares, key=lambda share: share.name)),
        _options(_typed(document["options"], dict)),
    )


@lru_cache(KEPT_LINES)
def _line(share: Share) -> str:
    return COMPACT.encode(share_fields(share))


def share_fields(share: Share) -> dict[str, Any]:
    """Return a share as it stands in the document."""
    entry: dict[str, Any] = {
        "name": share.name,
        "slices": [
            {
                "gpu": slice_.pci,
                "partition": slice_.partition,
                "mode": slice_.mode,
                "unique_id": f"{slice_.unique_id:x}",
                "cus": cumask.format_cus(slice_.cus) or ALL,
                "memory": slice_.memory,
            }
            for slice_ in share.slices
        ],
    }
    if share.oversubscribed:
        entry["oversubscribed"] = True
    if share.before:
        entry["before"] = list(share.before)
    return entry


def _share(entry: Mapping[str, Any]) -> Share:
    name = _typed(entry["name"], str)
    if not names.is_device(name):
        raise ValueError(f"{name[:80]!r} is no name of a CDI device")
    slices = tuple(_slice(part) for part in entry["slices"])
    if not slices:
        raise ValueError(f"share {name!r} has no slices")
    if len({slice_.place for slice_ in slices}) < len(slices):
        raise ValueError(f"share {name!r} has a GPU twice")
    return Share(
        name,
        slices,
        oversubscribed=_typed(entry.get("oversubscribed", False), bool),
        before=tuple(_typed(other, str) for other in _typed(entry.get("before", []), list)),
    )


def _slice(entry: Mapping[str, Any]) -> Slice:
    return Slice(
        pci=_typed(entry["gpu"], str),
        partition=_natural(entry["partition"]),
        mode=_typed(entry["mode"], str),
        unique_id=_natural(int(entry["unique_id"], 16), 1 << 64),
        cus=0 if entry["cus"] == ALL else cumask.parse_cus(entry["cus"]),
        memory=_natural(entry["memory"]),
    )


def _options(entry: Mapping[str, Any]) -> Options:
    known = {option.name for option in fields(Options)}
    unknown = set(entry) - known
    if unknown:
        raise ValueError(f"unknown options {sorted(unknown)}")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return Options(**values)


def _typed(value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise ValueError(f"{WORDS[kind]} was expected, found {str(value)[:80]!r}")
    return value


def _natural(value: object, limit: int = 1 << 63) -> int:
    number = _typed(value, int)
    if not 0 <= number < limit:
        raise ValueError(f"a number from 0 to below {limit} was expected, found {number}")
    return number
