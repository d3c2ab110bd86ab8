"""Files that a configuration changes, and what they were before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi.errors import PermanentError
from cdi.files import make_directory, os_error, read_bounded, sync_directory
from cdi.runtime import document
from cdi.runtime.document import MISSING, Edit, value_at

BACKUP = ".before-amd-cdi"
"""Suffix of the file that keeps what was there before the first change; empty for no file."""

MAX_BYTES = 8 << 20

OWN = "# Written by amd-cdi runtime configure, and removed by its --unset.\n"
"""First line of a drop-in file, by which it is known as ours."""

Parse = Callable[[str, str], dict[str, Any]]
Values = Mapping[document.Path, object]


@dataclass(frozen=True, slots=True)
class Change:
    """A file with other content; None for no file."""

    path: Path
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Edited:
    """A file of somebody else's in which single values are changed."""

    path: Path
    text: str | None
    backup: str | None
    """What it was before our change; None while there is none of ours."""
    parse: Parse
    edit: Edit

    def changes(self, values: Values, keys: tuple[document.Path, ...]) -> list[Change]:
        """Return what makes the file hold these values, and else what it held of these keys."""
        base = self._restored(keys)
        text = base or ""
        for path, value in values.items():
            text = self._edit(text, path, value)
        after = text if base is not None or values else None
        backup = (base or "") if values and after != base else None
        found = [
            Change(self.path.with_name(self.path.name + BACKUP), self.backup, backup),
            Change(self.path, self.text, after),
        ]
        if backup is None:
            # While our change is there its backup is, else nobody could tell the two apart.
            found.reverse()
        return [one for one in found if one.before != one.after]

    def _restored(self, keys: tuple[document.Path, ...]) -> str | None:
        """Return the text without our values, byte for byte where nobody else changed it since."""
        if self.backup is None or self.text is None:
            return self.text
        before = self.parse(self.backup, f"{self.path}{BACKUP}")
        now = self.parse(self.text, str(self.path))
        again = self.backup
        for path in keys:
            value = value_at(now, path)
            again = again if value is MISSING else self._edit(again, path, value)
        if again == self.text:
            return self.backup or None
        text = self.text
        for path in keys:
            text = self._edit(text, path, value_at(before, path))
            for length in range(len(path) - 1, 0, -1):
                table = path[:length]
                if value_at(before, table) is MISSING and not value_at(
                    self.parse(text, str(self.path)), table
                ):
                    text = self._edit(text, table, MISSING)
        return text

    def _edit(self, text: str, path: document.Path, value: object) -> str:
        try:
            return self.edit(text, path, value)
        except PermanentError as error:
            raise PermanentError(f"{self.path}: {error.message}", error.hint) from error


def drop_in(path: Path, before: str | None, after: str | None) -> list[Change]:
    """Return what gives a file of our own its content, or takes it away.

    Raises PermanentError for a file of somebody else's.
    """
    if before is not None and not before.startswith(OWN):
        if after is None:
            return []
        raise PermanentError(f"{path} is not a file of amd-cdi's", "move it away")
    return [] if before == after else [Change(path, before, after)]


def read(path: Path) -> str | None:
    """Return the text of a file, None if there is none."""
    try:
        return read_bounded(path, MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise PermanentError(f"{path} is not UTF-8: {error}", "correct it first") from error
    except OSError as error:
        raise os_error("read", path, error) from error


def backup_of(path: Path) -> str | None:
    """Return what a file was before our change, None where there is none of ours."""
    return read(path.with_name(path.name + BACKUP))


def write(changes: list[Change]) -> None:
    """Make the changes in their order, each file whole or not at all, with the mode it has."""
    for change in changes:
        # Where a link leads: the owner wants the file to be there.
        path = Path(os.path.realpath(change.path))
        try:
            if change.after is None:
                path.unlink(missing_ok=True)
                sync_directory(path.parent)
            else:
                make_directory(path.parent)
                _replace(path, change.after, _owner(path))
        except OSError as error:
            raise os_error("write", change.path, error) from error


def _owner(path: Path) -> os.stat_result | None:
    """Return whose the new file shall be: as the one it replaces, or the one it is a backup of."""
    for place in (path, path.with_name(path.name.removesuffix(BACKUP))):
        with suppress(FileNotFoundError):
            return place.stat()
    return None


def _replace(path: Path, text: str, like: os.stat_result | None) -> None:
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:  # noqa: PTH123
            file.write(text)
            file.flush()
            if like is not None and os.geteuid() == 0:
                os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(like.st_mode) if like else 0o644)
            os.fsync(descriptor)
        new.rename(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    sync_directory(path.parent)
