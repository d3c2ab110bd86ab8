"""The smallest edit of a JSON text that changes one member and keeps order and indentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cdi.errors import PermanentError
from cdi.runtime.document import MISSING, Path, with_value

BLANKS = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object, as places in the text."""

    key: str
    start: int
    value: int
    end: int


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the object of the file of this name; raises PermanentError for anything else."""
    try:
        document = json.loads(text or "{}", object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise PermanentError(f"{name} is not JSON: {error}", "correct it first") from error
    if not isinstance(document, dict):
        raise PermanentError(f"{name} holds no object", "correct it first")
    return document


def edit(text: str, path: Path, value: object) -> str:
    """Return the text with a value at a path, or without one."""
    before = parse(text, "the file")
    expected = with_value(before, path, value)
    if expected == before:
        return text
    if not before and not _members(text, 0):
        return json.dumps(expected, indent=2) + "\n"
    new = _edited(text, BLANKS.match(text).end(), path, value)  # type: ignore[union-attr]
    after = json.loads(new)
    if json.dumps(after) != json.dumps(expected):
        raise PermanentError(
            f"expected a place for {'.'.join(path)} that leaves the rest as it is, found none",
            "make this change by hand",
        )
    return new


def _edited(text: str, start: int, path: Path, value: object) -> str:
    """Return the text with the change below the object that starts there."""
    members = _members(text, start)
    key, *rest = path
    for number, member in enumerate(members):
        if member.key != key:
            continue
        if rest:
            return _edited(text, member.value, tuple(rest), value)
        if value is MISSING:
            return _removed(text, start, members, number)
        return text[: member.value] + json.dumps(value) + text[member.end :]
    for name in reversed(rest):
        value = {name: value}
    return _added(text, start, members, key, value)


def _removed(text: str, start: int, members: list[_Member], number: int) -> str:
    """Return the text without a member and one comma."""
    member = members[number]
    if number:
        return text[: members[number - 1].end] + text[member.end :]
    if len(members) > 1:
        return text[: member.start] + text[members[1].start :]
    return text[: start + 1] + text[_skip(text, member.end) :]


def _added(text: str, start: int, members: list[_Member], key: str, value: object) -> str:
    """Return the text with another member at the end, set off as the last one is."""
    if not members:
        return f"{text[: start + 1]}{json.dumps({key: value})[1:-1]}{text[start + 1 :]}"
    last = members[-1]
    gap = text[: last.start][len(text[: last.start].rstrip()) :]
    step = gap.rpartition("\n")[2] if "\n" in gap else ""
    written = json.dumps(value, indent=step or None).replace("\n", f"\n{step}")
    return f"{text[: last.end]},{gap or ' '}{json.dumps(key)}: {written}{text[last.end :]}"


def _members(text: str, start: int) -> list[_Member]:
    """Return the members of the object that starts there; none if there is none."""
    return list(_walk(text, start)) if text[start : start + 1] == "{" else []


def _walk(text: str, start: int) -> Iterator[_Member]:
    decoder = json.JSONDecoder()
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, end = decoder.raw_decode(text, at)
        value = _skip(text, _skip(text, end) + 1)
        _, end = decoder.raw_decode(text, value)
        yield _Member(key, at, value, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    """Return where the next character is that is no blank."""
    found = BLANKS.match(text, at)
    return found.end() if found else at


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return dict(pairs)
