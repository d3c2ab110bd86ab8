"""A CDI spec as the text of its file.

Written out here rather than by a YAML library, which takes 0.2 s for a node with many shares: the
text is nothing but nested lists and mappings, and every string is quoted, so that no YAML reader
takes ``1e3``, ``08`` or ``yes`` for anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from cdi.edits import Spec

HEADING = """\
# Written by amd-cdi from the GPUs of this node and the ledger of its shares.
# Changes made here are lost; see: amd-cdi generate --help
"""


def to_yaml(spec: Spec) -> str:
    """Return a spec as YAML, with a heading that says where it comes from."""
    return HEADING + yaml_of(spec)


def yaml_of(mapping: Mapping[str, object]) -> str:
    """Return a part of a spec as YAML."""
    return "".join(f"{line}\n" for line in _mapping(mapping, ""))


def to_json(spec: Spec) -> str:
    """Return a spec as JSON."""
    return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"


def encode(spec: Spec, form: str) -> bytes:
    """Return the bytes of a spec file in a format of ``options.FORMATS``."""
    return (to_json(spec) if form == "json" else to_yaml(spec)).encode()


def _mapping(mapping: Mapping[str, object], indent: str) -> Iterable[str]:
    for key, value in mapping.items():
        if isinstance(value, (dict, list)) and value:
            yield f"{indent}{key}:"
            yield from _block(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {_scalar(value)}"


def _block(value: object, indent: str) -> Iterable[str]:
    if isinstance(value, dict):
        yield from _mapping(value, indent)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, (dict, list)) and item:
                # The first line of an item stands behind its dash.
                lines = iter(_block(item, f"{indent}  "))
                yield f"{indent}- {next(iter(lines)).lstrip()}"
                yield from lines
            else:
                yield f"{indent}- {_scalar(item)}"


def _scalar(value: object) -> str:
    """Return a scalar, or an empty collection, in the form that YAML shares with JSON."""
    return json.dumps(value, ensure_ascii=False)
