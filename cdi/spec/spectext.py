"""A CDI spec as the text of its file.

Written out here rather than by a YAML library, which takes 0.2 s for a node with many shares: the
text is nothing but nested lists and mappings, and every string is quoted, so that no YAML reader
takes ``1e3``, ``08`` or ``yes`` for anything else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring

from cdi.spec.edits import Spec

HEADING = """\
# Written by amd-cdi from the GPUs of this node and the ledger of its shares.
# Changes made here are lost; see: amd-cdi generate --help
"""


def to_yaml(spec: Spec) -> str:
    """Return a spec as YAML, with a heading that says where it comes from."""
    return HEADING + yaml_of(spec)


def yaml_of(mapping: Mapping[str, object]) -> str:
    """Return a part of a spec as YAML."""
    lines: list[str] = []
    _mapping(mapping, "", "", lines)
    return "".join(f"{line}\n" for line in lines)


def to_json(spec: Spec) -> str:
    """Return a spec as JSON."""
    return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"


def encode(spec: Spec, form: str) -> bytes:
    """Return the bytes of a spec file in a format of ``options.FORMATS``."""
    return (to_json(spec) if form == "json" else to_yaml(spec)).encode()


def _mapping(mapping: Mapping[str, object], first: str, indent: str, lines: list[str]) -> None:
    """Add the lines of a mapping, the first of them behind ``first``, the others indented."""
    lead = first
    for key, value in mapping.items():
        if isinstance(value, (dict, list)) and value:
            lines.append(f"{lead}{key}:")
            _block(value, f"{indent}  ", lines)
        else:
            lines.append(f"{lead}{key}: {_scalar(value)}")
        lead = indent


def _block(value: Mapping[str, object] | list[object], indent: str, lines: list[str]) -> None:
    """Add the lines of what is not empty."""
    if isinstance(value, Mapping):
        _mapping(value, indent, indent, lines)
        return
    for item in value:
        if isinstance(item, dict) and item:
            # The first line of an item stands behind its dash.
            _mapping(item, f"{indent}- ", f"{indent}  ", lines)
        elif isinstance(item, list) and item:
            lines.append(f"{indent}-")
            _block(item, f"{indent}  ", lines)
        else:
            lines.append(f"{indent}- {_scalar(item)}")


def _scalar(value: object) -> str:
    """Return a scalar, or an empty collection, in the form that YAML shares with JSON."""
    if isinstance(value, str):
        # What json.dumps comes to, for a fraction of its time.
        return encode_basestring(value)
    return json.dumps(value, ensure_ascii=False)
