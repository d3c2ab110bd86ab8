"""JSON text to Python values, without the import cost of the json package.

The package compiles regular expressions when it is imported, which costs as much as starting
Python. Its C scanner alone reads well-formed text; whatever the scanner alone cannot read, or an
interpreter without it, goes to the package, so that there is one judge of what JSON is.
"""

from __future__ import annotations

from ocihook.refusal import Refusal

BLANKS = " \t\n\r"

WORDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number"}
"""What JSON calls the types; a float is a number as well, and None is null."""


def kind_of(value: object) -> str:
    """Return what JSON calls the type of a value."""
    return "null" if value is None else WORDS.get(type(value), "a number")


class Context:
    """What the C scanner reads from its context: the defaults of ``json.loads``."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def parse(data: bytes, name: str) -> object:
    """Return the value of a JSON text in UTF-8; raises Refusal naming the text if it is none."""
    try:
        text = data.decode("utf-8")
        found, value = _scan(text)
        return value if found else _loads(text)
    except (ValueError, RecursionError) as error:
        hint = "the container runtime writes it: look at the runtime's own log"
        raise Refusal(f"JSON in {name}", f"other text ({error})", node_hint=hint) from error


def _scan(text: str) -> tuple[bool, object]:
    """Return whether the C scanner took the whole text, and the value."""
    try:
        from _json import make_scanner

        scan = make_scanner(Context)  # type: ignore[arg-type] # typeshed wants a scanner there
        value, end = scan(text, len(text) - len(text.lstrip(BLANKS)))
    # A scanner without its package reports an error by a SystemError (CPython 3.11).
    except (ImportError, AttributeError, TypeError, ValueError, StopIteration, SystemError):
        return False, None
    return not text[end:].strip(BLANKS), value


def _loads(text: str) -> object:
    import json

    return json.loads(text)
