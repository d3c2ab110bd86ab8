"""Whether a runtime will load a spec: its types by JSON schema, everything else by the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import jsonschema

from cdi.spec import rules
from cdi.spec.edits import Spec


def findings(document: object) -> Iterator[str]:
    """Yield everything that keeps a runtime from loading a document as a spec."""
    schema = json.loads((Path(__file__).parent / "schema.json").read_bytes())
    validator = jsonschema.Draft7Validator(schema)
    wrong = sorted(validator.iter_errors(document), key=lambda error: [str(p) for p in error.path])
    for error in wrong:
        yield f"{_where(document, list(error.absolute_path))}: {_shortened(error.message)}"
    if not wrong:
        yield from rules.findings(cast("Spec", document))


def _where(document: object, path: list[str | int]) -> str:
    """Return the place of a finding, naming a device by its name where it has one."""
    if len(path) >= 2 and path[0] == "devices":
        device = document["devices"][path[1]]  # type: ignore[index]
        name = device.get("name", path[1]) if isinstance(device, dict) else path[1]
        rest = ".".join(str(part) for part in path[2:])
        return f"device {name!r}" + (f": {rest}" if rest else "")
    return ".".join(str(part) for part in path) or "the spec"


def _shortened(text: str) -> str:
    # A value comes first and may be long; what is wrong with it comes last.
    return text if len(text) <= 300 else f"{text[:150]} … {text[-150:]}"
