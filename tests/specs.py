"""The specs of a directory, as a runtime reads them, by a YAML reader that is not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def devices(directory: Path) -> dict[str, Any]:
    """Return what each device of all specs edits; no two may have the same name."""
    found: dict[str, Any] = {}
    # A listing made while files come and go may name one that is gone.
    for path in [path for path in sorted(directory.iterdir()) if path.suffix in {".yaml", ".json"}]:
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
        except FileNotFoundError:
            continue
        for device in document["devices"]:
            assert device["name"] not in found, f"{device['name']} stands twice, also in {path}"
            found[device["name"]] = device["containerEdits"]
    return found
