"""The log: lines for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]

SHOWN = 5
"""Names in one line."""

LEVELS = ("debug", "info", "warning", "error")

log = logging.getLogger("amd-device-plugin")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
                "level": record.levelname.lower(),
                "message": record.getMessage(),
            },
            ensure_ascii=False,
        )


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        # One line each, whatever an error of another process brings along.
        message = " ".join(record.getMessage().split())
        return f"{when}Z {record.levelname.lower()} {message}"


def configure(form: Format, level: str) -> None:
    """Send the log to standard error in this form, from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    log.handlers = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def some(names: Iterable[str]) -> str:
    """Return the first of many names, for one line of the log."""
    first = sorted(names)
    return ", ".join(first[:SHOWN]) + (", …" if len(first) > SHOWN else "")
