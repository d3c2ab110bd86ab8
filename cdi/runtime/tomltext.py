"""The smallest edit of a TOML text that changes one value and keeps all else, comments too.

Places where the edit may go are looked for as text, and what comes of each is parsed: it is the one
if it says what the text before said, with the one change.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from cdi.errors import PermanentError
from cdi.runtime.document import MISSING, Path, with_value

MAX_LINES = 64
"""Of one value that is replaced."""


def parse(text: str, name: str) -> dict[str, Any]:
    """Return the document of the file of this name; raises PermanentError for what is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PermanentError(f"{name} is not TOML: {error}", "correct it first") from error


def edit(text: str, path: Path, value: object) -> str:
    """Return the text with a value at a path, or without one.

    Raises PermanentError where no small edit does it.
    """
    before = tomllib.loads(text)
    expected = with_value(before, path, value)
    if expected == before:
        return text
    for candidate in _candidates(text.splitlines(keepends=True), path, value):
        try:
            if tomllib.loads(candidate) == expected:
                return candidate
        except tomllib.TOMLDecodeError:
            continue
    *table, key = path
    wanted = f"no {key}" if value is MISSING else _line(key, value)
    raise PermanentError(
        f"expected a place for `{wanted}` in the table [{_header(table)}], found none that leaves "
        "the rest as it is",
        "make this change by hand",
    )


def _candidates(lines: list[str], path: Path, value: object) -> Iterator[str]:
    """Yield texts that may be it, those that change the least first."""
    *table, key = path
    if value is MISSING:
        yield from _without_table(lines, list(path))
    new = "" if value is MISSING else _line(key, value)
    assignment = re.compile(rf"(\s*(?:[^=#\n]*\.\s*)?[\"']?{re.escape(key)}[\"']?\s*=)")
    starts = [(i, found) for i, line in enumerate(lines) if (found := assignment.match(line))]
    for length in range(1, MAX_LINES):
        for start, found in starts:
            if start + length > len(lines):
                continue
            end = lines[start + length - 1]
            comment = re.search(r"[ \t]*(#[^\"']*)?\n?$", end)
            kept = comment[0] if comment else "\n"
            replaced = f"{found[1]} {new.partition(' = ')[2]}{kept}" if new else ""
            yield "".join([*lines[:start], replaced, *lines[start + length :]])
    if new:
        yield from _with_line(lines, table, new)


def _with_line(lines: list[str], table: list[str], new: str) -> Iterator[str]:
    headers = [i for i, line in enumerate(lines) if line.lstrip().startswith("[")]
    if not table:
        # Before the first table, where such keys stand.
        place = headers[0] if headers else len(lines)
        yield "".join([*_ended(lines[:place]), f"{new}\n", *lines[place:]])
        return
    for i in headers:
        if _table_of(lines[i]) == table:
            indent = re.match(r"\s*", lines[i + 1] if i + 1 < len(lines) else lines[i])
            blanks = indent[0].strip("\n") if indent else ""
            yield "".join([*_ended(lines[: i + 1]), f"{blanks}{new}\n", *lines[i + 1 :]])
    yield "".join([*_ended(lines), *(["\n"] if lines else []), f"[{_header(table)}]\n{new}\n"])


def _without_table(lines: list[str], table: list[str]) -> Iterator[str]:
    """Yield the text without the header of an empty table, and the blank line before it."""
    for i, line in enumerate(lines):
        if line.lstrip().startswith("[") and _table_of(line) == table:
            before = lines[: i - 1] if i and not lines[i - 1].strip() else lines[:i]
            yield "".join([*before, *lines[i + 1 :]])


def _table_of(line: str) -> list[str] | None:
    """Return the keys that a header line names."""
    try:
        document: Any = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return None
    keys = []
    while isinstance(document, dict) and document:
        key, document = next(iter(document.items()))
        keys.append(key)
    return keys


def _ended(lines: list[str]) -> list[str]:
    """Return the lines with an end of line at the end."""
    if lines and not lines[-1].endswith("\n"):
        return [*lines[:-1], f"{lines[-1]}\n"]
    return lines


def _header(table: list[str]) -> str:
    bare = re.compile(r"[A-Za-z0-9_-]+")
    return ".".join(key if bare.fullmatch(key) else json.dumps(key) for key in table)


def _line(key: str, value: object) -> str:
    """Return an assignment; of what is written here, TOML's values look like JSON's."""
    return f"{key} = {json.dumps(value)}"
